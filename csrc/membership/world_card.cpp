#include "membership/world_card.h"

#include <span>

#include "plan/negotiation_message.h"
#include "plan/wire.h"

namespace rueda {

namespace {

constexpr std::uint64_t wire_version = 1;

}  // namespace

std::string encode(const WorldCard& card) {
  Writer writer;
  writer.unsigned_integer(wire_version);
  writer.text(card.host);
  writer.text(card.host_name);
  writer.integer(card.process_id);
  write(writer, card.shm);
  write(writer, card.mpi);
  writer.unsigned_integer(card.options.size());
  for (const auto& [name, value] : card.options) {
    writer.text(name);
    writer.text(value);
  }
  const std::vector<std::byte> bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<WorldCard> decode_card(const std::string& text) {
  Reader reader(std::as_bytes(std::span(text)));
  if (reader.unsigned_integer() != wire_version) return std::nullopt;
  WorldCard card;
  card.host = reader.text();
  card.host_name = reader.text();
  card.process_id = static_cast<int>(reader.integer());
  card.shm = read_status(reader);
  card.mpi = read_status(reader);
  for (std::size_t count = reader.size(); count > 0; --count) {
    std::string name = reader.text();
    card.options[std::move(name)] = reader.text();
  }
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  return card;
}

}  // namespace rueda
