#include "server/table_message.h"

#include <algorithm>

#include "plan/negotiation_message.h"
#include "plan/wire.h"

namespace rueda {

namespace {

enum Flag : std::uint8_t {
  flag_replica = 1,
  flag_by_staleness = 2,
  flag_ticks = 4,
  flag_finishes = 8,
  flag_inline = 16,
  flag_restarts = 32,
};
constexpr std::uint8_t all_flags = 63;

std::vector<std::byte> with_payload(Writer& writer, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes = writer.take();
  const std::size_t header = bytes.size();
  bytes.resize(header + payload.size());
  std::copy(payload.begin(), payload.end(), bytes.data() + header);
  return bytes;
}

int flag(bool is_set, Flag which) {
  return is_set ? static_cast<int>(which) : 0;
}

// An inline payload is all that remains; otherwise nothing remains.
template <class Message>
std::optional<DecodedTableMessage<Message>> decoded(Message message, const Reader& reader) {
  const std::uint64_t expected = message.is_inline ? message.payload_bytes : 0;
  if (!reader.ok() || reader.rest().size() != expected) return std::nullopt;
  return DecodedTableMessage<Message>{std::move(message), reader.rest()};
}

}  // namespace

std::vector<std::byte> encode(const TableRequest& request,
                              std::span<const std::byte> inline_payload) {
  Writer writer;
  writer.unsigned_integer(request.table);
  writer.unsigned_integer(request.number);
  writer.byte(static_cast<std::uint8_t>(request.verb));
  writer.byte(static_cast<std::uint8_t>(
      flag(request.is_replica, flag_replica) | flag(request.by_staleness, flag_by_staleness) |
      flag(request.ticks, flag_ticks) | flag(request.finishes, flag_finishes) |
      flag(request.restarts, flag_restarts) | flag(request.is_inline, flag_inline)));
  writer.integer(request.begin);
  writer.integer(request.count);
  writer.real(static_cast<double>(request.factor));
  writer.unsigned_integer(request.seen);
  writer.integer(request.min_clock);
  writer.text(request.function);
  writer.unsigned_integer(request.payload_bytes);
  return with_payload(writer, inline_payload);
}

std::optional<DecodedTableMessage<TableRequest>> decode_table_request(
    std::span<const std::byte> bytes) {
  Reader reader(bytes);
  TableRequest request;
  request.table = reader.unsigned_integer();
  request.number = reader.unsigned_integer();
  const std::uint8_t verb = reader.byte();
  const std::uint8_t flags = reader.byte();
  if (verb >= table_verbs || flags > all_flags) return std::nullopt;
  request.verb = static_cast<TableVerb>(verb);
  request.is_replica = (flags & flag_replica) != 0;
  request.by_staleness = (flags & flag_by_staleness) != 0;
  request.ticks = (flags & flag_ticks) != 0;
  request.finishes = (flags & flag_finishes) != 0;
  request.restarts = (flags & flag_restarts) != 0;
  request.is_inline = (flags & flag_inline) != 0;
  request.begin = reader.integer();
  request.count = reader.integer();
  request.factor = static_cast<float>(reader.real());
  request.seen = reader.unsigned_integer();
  request.min_clock = reader.integer();
  request.function = reader.text();
  request.payload_bytes = reader.unsigned_integer();
  if (request.begin < 0 || request.count < 0) return std::nullopt;
  return decoded(std::move(request), reader);
}

std::vector<std::byte> encode(const TableAnswer& answer,
                              std::span<const std::byte> inline_payload) {
  Writer writer;
  writer.unsigned_integer(answer.number);
  write(writer, answer.status);
  writer.unsigned_integer(answer.version);
  writer.unsigned_integer(answer.staleness);
  writer.unsigned_integer(answer.payload_bytes);
  writer.byte(answer.is_inline ? 1 : 0);
  return with_payload(writer, inline_payload);
}

std::optional<DecodedTableMessage<TableAnswer>> decode_table_answer(
    std::span<const std::byte> bytes) {
  Reader reader(bytes);
  TableAnswer answer;
  answer.number = reader.unsigned_integer();
  answer.status = read_status(reader);
  answer.version = reader.unsigned_integer();
  answer.staleness = reader.unsigned_integer();
  answer.payload_bytes = reader.unsigned_integer();
  answer.is_inline = reader.byte() != 0;
  return decoded(std::move(answer), reader);
}

}  // namespace rueda
