#include "plan/survivor_message.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/strings.h"
#include "plan/negotiation_message.h"
#include "plan/rank_list.h"

namespace rueda {

namespace {

constexpr std::uint8_t version = 1;
constexpr std::size_t max_cause_length = 1000;
// More epochs than any agreement tries: sums of these numbers stay far from the largest.
constexpr std::uint64_t max_proposals = 1U << 20U;
constexpr std::uint64_t max_epoch = std::uint64_t{1} << 62U;

enum class Kind : std::uint8_t { view, has_gone_on };

int read_member(Reader& reader) {
  const std::int64_t wide = reader.integer();
  const auto number = static_cast<int>(wide);
  return number == wide && number >= 0 ? number : reader.fail();
}

bool read_flag(Reader& reader) {
  const std::uint8_t value = reader.byte();
  return (value <= 1 ? value : reader.fail()) == 1;
}

// Keys ascend, as encode() writes them. Grows with the data that really exists.
template <class Key, class Value, class ReadItem>
std::map<Key, Value> read_map(Reader& reader, const ReadItem& read_item) {
  std::map<Key, Value> items;
  for (std::size_t rest = reader.size(); rest > 0 && reader.ok(); --rest) {
    auto item = read_item(reader);
    if (!items.empty() && !(std::prev(items.end())->first < item.first)) reader.fail();
    items.insert(items.end(), std::move(item));
  }
  return items;
}

Status read_cause(Reader& reader) {
  Status cause = read_status(reader);
  if (cause.message().size() > max_cause_length) reader.fail();
  return cause;
}

// Sorted, without duplicates, and not empty.
std::vector<int> read_members(Reader& reader) {
  std::vector<int> members = reader.integers<int>();
  const auto wrong = std::adjacent_find(members.begin(), members.end(), std::greater_equal<int>());
  if (members.empty() || members.front() < 0 || wrong != members.end()) reader.fail();
  return members;
}

void write(Writer& writer, const SurvivorView& view) {
  writer.unsigned_integer(view.epoch);
  writer.unsigned_integer(view.proposal);
  writer.byte(view.knows_nothing ? 1 : 0);
  writer.byte(view.is_answer ? 1 : 0);
  writer.unsigned_integer(view.ended.size());
  for (const auto& [member, cause] : view.ended) {
    writer.integer(member);
    write(writer, cause);
  }
  writer.unsigned_integer(view.broken.size());
  for (const auto& [link, cause] : view.broken) {
    writer.integer(link.observer);
    writer.integer(link.member);
    write(writer, cause);
  }
  writer.unsigned_integer(view.given_up.size());
  for (const auto& [members, world] : view.given_up) {
    writer.integers(members);
    writer.unsigned_integer(world.epoch);
    writer.integers(world.decided);
  }
  writer.unsigned_integer(view.reached.size());
  for (const auto& [member, number] : view.reached) {
    writer.integer(member);
    writer.unsigned_integer(number);
  }
}

SurvivorView read_view(Reader& reader) {
  SurvivorView view;
  view.epoch = reader.unsigned_integer();
  view.proposal = reader.unsigned_integer();
  const bool is_later = view.proposal > view.epoch && view.epoch < max_epoch &&
                        view.proposal - view.epoch <= max_proposals;
  if (!is_later) reader.fail();
  view.knows_nothing = read_flag(reader);
  view.is_answer = read_flag(reader);
  view.ended = read_map<int, Status>(reader, [](Reader& from) {
    const int member = read_member(from);
    return std::pair(member, read_cause(from));
  });
  view.broken = read_map<BrokenLink, Status>(reader, [](Reader& from) {
    BrokenLink link;
    link.observer = read_member(from);
    link.member = read_member(from);
    if (link.observer == link.member) from.fail();
    return std::pair(link, read_cause(from));
  });
  view.given_up = read_map<std::vector<int>, GivenUp>(reader, [&](Reader& from) {
    std::vector<int> members = read_members(from);
    GivenUp world;
    world.epoch = from.unsigned_integer();
    if (world.epoch <= view.epoch || world.epoch >= view.proposal) from.fail();
    const std::vector<int> decided = read_members(from);
    if (!std::includes(members.begin(), members.end(), decided.begin(), decided.end())) {
      from.fail();
    }
    world.decided.insert(decided.begin(), decided.end());
    return std::pair(std::move(members), std::move(world));
  });
  view.reached = read_map<int, std::uint64_t>(reader, [&](Reader& from) {
    const int member = read_member(from);
    const std::uint64_t number = from.unsigned_integer();
    if (number <= view.epoch || number > view.proposal) from.fail();
    return std::pair(member, number);
  });
  return view;
}

void write(Writer& writer, const EpochHasGoneOn& message) {
  writer.unsigned_integer(message.epoch);
  writer.integers(message.members);
  write(writer, message.cause);
}

EpochHasGoneOn read_has_gone_on(Reader& reader) {
  EpochHasGoneOn message;
  message.epoch = reader.unsigned_integer();
  if (message.epoch >= max_epoch) reader.fail();
  message.members = read_members(reader);
  message.cause = read_cause(reader);
  return message;
}

}  // namespace

std::vector<std::byte> encode(const SurvivorMessage& message) {
  Writer writer;
  writer.byte(version);
  const auto* const view = std::get_if<SurvivorView>(&message);
  writer.byte(static_cast<std::uint8_t>(view != nullptr ? Kind::view : Kind::has_gone_on));
  if (view != nullptr) {
    write(writer, *view);
  } else {
    write(writer, std::get<EpochHasGoneOn>(message));
  }
  return writer.take();
}

std::optional<SurvivorMessage> decode_survivor_message(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  if (reader.byte() != version) return std::nullopt;
  std::optional<SurvivorMessage> message;
  switch (static_cast<Kind>(reader.byte())) {
    case Kind::view: message = read_view(reader); break;
    case Kind::has_gone_on: message = read_has_gone_on(reader); break;
    default: return std::nullopt;
  }
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  return message;
}

Status shortened(const Status& cause) {
  if (cause.ok()) return cause;
  std::string text = cause.to_string();
  if (text.size() > max_cause_length) {
    std::size_t length = max_cause_length - 3;
    // Do not cut within a UTF-8 character.
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
    text.resize(length);
    text += "...";
  }
  return {cause.code(), std::move(text), cause.peer(), {.reason = cause.details().reason}};
}

std::string describe_survivor_message(std::span<const std::byte> bytes) {
  const auto message = decode_survivor_message(bytes);
  if (!message) return "nonsense";
  if (const auto* const gone = std::get_if<EpochHasGoneOn>(&*message)) {
    return str("epoch ", gone->epoch, " was formed: ", describe_ranks(gone->members));
  }
  const auto& view = std::get<SurvivorView>(*message);
  std::string text =
      str("epoch ", view.epoch, ", proposal ", view.proposal,
          view.knows_nothing ? ", knows nothing" : "", view.is_answer ? ", an answer" : "");
  for (const auto& item : view.ended) text += str(", ", item.first, " has ended");
  for (const auto& item : view.broken) {
    text += str(", ", item.first.observer, " does not reach ", item.first.member);
  }
  for (const auto& [members, world] : view.given_up) {
    text += str(", gave up epoch ", world.epoch, ", ", describe_ranks(members));
  }
  return text;
}

}  // namespace rueda
