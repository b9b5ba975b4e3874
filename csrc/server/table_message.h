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
  put,        // values are these from now on
  add,        // by the table's rule
  tick,       // this rank has done a step, or all that it will
  call,       // answers with what a function makes of the shard
  put_state,  // what the rule keeps of values is this from now on
};
inline constexpr std::uint8_t table_verbs = 6;
[[nodiscard]] constexpr bool changes_values(TableVerb verb) {
  return verb == TableVerb::put || verb == TableVerb::add || verb == TableVerb::put_state;
}

// Behind the header come the payload's bytes where it is inline; otherwise it follows as a message
// to the owner. The payload of put and add: rows, if the table has such, then their values; of
// put_state what the rule keeps, of elements one kind after the other.
struct TableRequest {
  std::uint64_t table = 0;
  std::uint64_t number = 0;  // among the requests of the rank that asks
  TableVerb verb = TableVerb::get;
  bool is_replica = false;  // for what this rank holds for the one that asks
  std::int64_t begin = 0;   // of a dense table; the first element
  std::int64_t count = 0;   // of elements, or of rows
  float factor = 1;
  bool by_staleness = false;   // the factor is divided by 1 + staleness
  bool ticks = false;          // the rank has done a step with this
  bool finishes = false;       // tick: it will do no more
  bool restarts = false;       // tick: its clock is `min_clock` from now on
  std::uint64_t seen = 0;      // the shard's version when the rank last got values of it
  std::int64_t min_clock = 0;  // get: not before all ranks have done so many steps
  std::string function{};      // call
  std::uint64_t payload_bytes = 0;
  bool is_inline = true;
};

struct TableAnswer {
  std::uint64_t number = 0;
  Status status{};
  std::uint64_t version = 0;    // of the shard, after the request
  std::uint64_t staleness = 0;  // add: additions between the values that the rank has seen and this
  std::uint64_t payload_bytes = 0;
  bool is_inline = true;
};

[[nodiscard]] std::vector<std::byte> encode(const TableRequest& request,
                                            std::span<const std::byte> inline_payload);
[[nodiscard]] std::vector<std::byte> encode(const TableAnswer& answer,
                                            std::span<const std::byte> inline_payload);

// A message with its inline payload, which refers to the bytes; nothing for bytes that are none.
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
