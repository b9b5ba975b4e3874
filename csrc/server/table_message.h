// Requests to the owner of a part of a table, and its answers, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace rueda {

enum class TableVerb : std::uint8_t {
  get,        // answers with values
  put,        // sets values
  add,        // adds by the table's rule
  tick,       // this rank has done a step, or all its steps
  call,       // answers with the result of a function on the shard
  put_state,  // sets the rule's state of values
};
inline constexpr std::uint8_t table_verbs = 6;
[[nodiscard]] constexpr bool changes_values(TableVerb verb) {
  return verb == TableVerb::put || verb == TableVerb::add || verb == TableVerb::put_state;
}

// If the payload is inline, its bytes follow the header; otherwise it follows as a message to the
// owner. The payload of put and add: rows, if the table has them, then their values; of put_state:
// the rule's state, for elements one kind after the other.
struct TableRequest {
  std::uint64_t table = 0;
  std::uint64_t number = 0;  // among the requests of the requesting rank
  TableVerb verb = TableVerb::get;
  bool is_replica = false;  // for what this rank keeps for the requesting one
  std::int64_t begin = 0;   // of a dense table: the first element
  std::int64_t count = 0;   // number of elements, or of rows
  float factor = 1;
  bool by_staleness = false;   // the factor is divided by 1 + staleness
  bool ticks = false;          // the rank has done a step with this
  bool finishes = false;       // tick: it will do no more steps
  bool restarts = false;       // tick: sets its clock to `min_clock`
  std::uint64_t seen = 0;      // the shard's version when the rank last got values of it
  std::int64_t min_clock = 0;  // get: wait until all ranks have done this many steps
  std::string function{};      // call
  std::uint64_t payload_bytes = 0;
  bool is_inline = true;
};

struct TableAnswer {
  std::uint64_t number = 0;
  Status status{};
  std::uint64_t version = 0;    // of the shard, after the request
  std::uint64_t staleness = 0;  // add: additions between the values that the rank saw and this one
  std::uint64_t payload_bytes = 0;
  bool is_inline = true;
};

[[nodiscard]] std::vector<std::byte> encode(const TableRequest& request,
                                            std::span<const std::byte> inline_payload);
[[nodiscard]] std::vector<std::byte> encode(const TableAnswer& answer,
                                            std::span<const std::byte> inline_payload);

// A message with its inline payload, which refers to the bytes; empty if they are not a message.
template <class Message>
struct DecodedTableMessage {
  Message message;
  std::span<const std::byte> payload;
};
[[nodiscard]] std::optional<DecodedTableMessage<TableRequest>> decode_table_request(
    std::span<const std::byte> bytes);
[[nodiscard]] std::optional<DecodedTableMessage<TableAnswer>> decode_table_answer(
    std::span<const std::byte> bytes);

}  // namespace rueda
