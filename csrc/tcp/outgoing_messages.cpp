#include "tcp/outgoing_messages.h"

#include <algorithm>
#include <utility>

#include "transport/matching.h"
#include "transport/span_cursor.h"

namespace rueda {

namespace {

// Whether a message goes before one that was to be sent before it.
bool overtakes(const OutgoingMessages::Message& later, const OutgoingMessages::Message& earlier) {
  if (later.priority != earlier.priority) return later.priority > earlier.priority;
  const Tag& one = later.tag;
  const Tag& other = earlier.tag;
  return one.group >= 0 && one.group == other.group && one.stream == other.stream &&
         one.sequence < other.sequence;
}

}  // namespace

ChunkHeader OutgoingMessages::Chunk::header() const {
  return {message->number, message->previous, message->length,
          offset,          message->tag,      static_cast<std::uint32_t>(bytes)};
}

void OutgoingMessages::Chunk::append_to(std::vector<ConstBytes>& parts, std::size_t skipped) const {
  append_slice(message->spans, offset + skipped, bytes - skipped, parts);
}

Ticket OutgoingMessages::send(Tag tag, std::span<const ConstBytes> spans, std::int32_t priority) {
  auto message = std::make_shared<Message>();
  message->number = ++messages_;
  message->tag = tag;
  message->priority = priority;
  for (const ConstBytes& span : spans) message->length += span.size();
  if (message->length <= max_copied_bytes) {
    message->copy = std::make_unique_for_overwrite<std::byte[]>(message->length);
    SpanCursor<const std::byte> source(spans);
    const MutableBytes target(message->copy.get(), message->length);
    copy_from(source, target);
    message->spans.emplace_back(target);
  } else {
    message->spans.assign(spans.begin(), spans.end());
  }
  message->unwritten = message->length;
  message->unacknowledged = message->length;
  message->ticket = std::make_shared<Transfer>(Transfer{false, {}, peer_});
  Chain& chain = chains_[tag];
  message->previous = chain.unfinished > 0 ? chain.last : 0;
  chain.last = message->number;
  ++chain.unfinished;
  ++unfinished_;
  open_.emplace(message->number, message);
  Ticket ticket = message->ticket;
  const auto place = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const auto& earlier) {
    return !overtakes(*message, *earlier);
  });
  waiting_.insert(place.base(), std::move(message));
  return ticket;
}

std::optional<OutgoingMessages::Chunk> OutgoingMessages::take(std::size_t max_bytes) {
  if (!returned_.empty()) {
    Chunk chunk = std::move(returned_.front());
    returned_.pop_front();
    return chunk;
  }
  if (waiting_.empty()) return std::nullopt;
  Message& message = *waiting_.front();
  const std::size_t count = std::min(message.length - message.handed_out, max_bytes);
  Chunk chunk{waiting_.front(), message.handed_out, count};
  message.handed_out += count;
  if (message.handed_out == message.length) waiting_.pop_front();
  return chunk;
}

void OutgoingMessages::mark_written(Chunk& chunk) {
  if (std::exchange(chunk.written, true)) return;
  Message& message = *chunk.message;
  message.unwritten -= chunk.bytes;
  if (!message.copy || message.unwritten > 0 || message.ticket->done) return;
  finish(*message.ticket, {});
  open_.erase(message.number);
}

void OutgoingMessages::acknowledge(const Chunk& chunk) {
  Message& message = *chunk.message;
  message.unacknowledged -= chunk.bytes;
  if (message.unacknowledged == 0) finish_one(message);
}

void OutgoingMessages::finish_one(const Message& message) {
  --unfinished_;
  const auto chain = chains_.find(message.tag);
  if (--chain->second.unfinished == 0) chains_.erase(chain);
  if (!message.ticket->done) finish(*message.ticket, {});
  open_.erase(message.number);
}

void OutgoingMessages::fail(const Status& why) {
  for (const auto& [number, message] : open_) finish(*message->ticket, why);
  open_.clear();
  waiting_.clear();
  returned_.clear();
  chains_.clear();
  unfinished_ = 0;
}

}  // namespace rueda
