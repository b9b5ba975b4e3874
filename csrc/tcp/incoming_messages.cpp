#include "tcp/incoming_messages.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/strings.h"
#include "transport/matching.h"
#include "transport/span_cursor.h"

namespace rueda {

class IncomingMessages::Message {
 public:
  std::uint64_t number = 0;
  std::uint64_t length = 0;
  Tag tag;
  bool in_turn = false;  // all earlier ones with the same tag are known
  bool whole = false;    // or no longer wanted
  std::uint64_t arrived = 0;
  IntervalSet parts;
  std::unique_ptr<std::byte[]> kept;  // if no receive was known when it began
  std::vector<MutableBytes> spans;    // of the receive that `ticket` belongs to
  Ticket ticket;
  bool unwanted = false;  // its receive has failed
  bool lost = false;      // no memory was available to keep it
};

Ticket IncomingMessages::recv(Tag tag, std::span<const MutableBytes> spans) {
  if (!failure_.ok()) return finished_ticket(peer_, failure_);
  Posted posted{
      {spans.begin(), spans.end()}, 0, std::make_shared<Transfer>(Transfer{false, {}, peer_})};
  for (const MutableBytes& span : spans) posted.length += span.size();
  Ticket ticket = posted.ticket;
  expected_bytes_ += posted.length;
  const auto found = queues_.try_emplace(tag).first;
  auto& unexpected = found->second.unexpected;
  if (unexpected.empty()) {
    found->second.posted.push_back(std::move(posted));
    return ticket;
  }
  const MessagePointer message = std::move(unexpected.front());
  unexpected.pop_front();
  if (unexpected.empty()) queues_.erase(found);
  match(*message, std::move(posted));
  return ticket;
}

Expected<IncomingMessages::MessagePointer> IncomingMessages::begin(const ChunkHeader& header) {
  const auto nonsense = [this] {
    return Status(ErrorCode::transport, str("rank ", peer_, " sent an invalid part of a message"),
                  peer_);
  };
  if (header.message == 0 || header.previous >= header.message ||
      header.length > max_message_bytes || header.bytes > max_chunk_bytes ||
      header.offset > header.length || header.bytes > header.length - header.offset) {
    return nonsense();
  }
  if (closed_.contains(header.message)) {
    auto duplicate = std::make_shared<Message>();
    duplicate->whole = true;
    return duplicate;
  }
  if (const auto known = open_.find(header.message); known != open_.end()) {
    const Message& message = *known->second;
    if (message.length != header.length || message.tag != header.tag) return nonsense();
    return known->second;
  }
  auto message = std::make_shared<Message>();
  message->number = header.message;
  message->length = header.length;
  message->tag = header.tag;
  open_.emplace(message->number, message);
  if (header.previous == 0 || is_in_turn(header.previous)) {
    take_turn(message);
  } else {
    later_.emplace(header.previous, message);
  }
  return message;
}

bool IncomingMessages::is_in_turn(std::uint64_t number) const {
  const auto known = open_.find(number);
  return known != open_.end() ? known->second->in_turn : closed_.contains(number);
}

// Including those that waited for it.
void IncomingMessages::take_turn(const MessagePointer& first) {
  for (MessagePointer message = first; message;) {
    message->in_turn = true;
    const auto found = queues_.try_emplace(message->tag).first;
    auto& posted = found->second.posted;
    if (posted.empty()) {
      found->second.unexpected.push_back(message);
    } else {
      Posted receive = std::move(posted.front());
      posted.pop_front();
      if (posted.empty()) queues_.erase(found);
      match(*message, std::move(receive));
    }
    close_if_over(message);
    auto next = later_.extract(message->number);
    message = next.empty() ? nullptr : std::move(next.mapped());
  }
}

void IncomingMessages::match(Message& message, Posted posted) {
  if (message.lost) {
    expected_bytes_ -= posted.length;
    finish(*posted.ticket,
           Status(ErrorCode::transport,
                  str("no memory for the ", message.length, " bytes that rank ", peer_, " sent of ",
                      describe(message.tag), " before they were expected"),
                  peer_));
    message.unwanted = true;
    return;
  }
  if (posted.length != message.length) {
    expected_bytes_ -= posted.length;
    // Reads the message to its end and discards it.
    finish(*posted.ticket,
           Status(ErrorCode::transport,
                  str("rank ", peer_, " sent ", message.length, " bytes of ", describe(message.tag),
                      ", but ", posted.length, " were expected"),
                  peer_));
    message.unwanted = true;
    message.kept.reset();
    return;
  }
  message.spans = std::move(posted.spans);
  message.ticket = std::move(posted.ticket);
  if (message.whole) hand_out(message);
}

// Passes it to the receive that it was matched with.
void IncomingMessages::hand_out(Message& message) {
  expected_bytes_ -= message.length;
  if (message.kept) {
    SpanCursor<std::byte> target(message.spans);
    copy_into(target, ConstBytes(message.kept.get(), message.length));
    message.kept.reset();
  }
  finish(*message.ticket, {});
}

bool IncomingMessages::has_place(const Message& message) {
  return message.ticket || message.kept || message.whole || message.unwanted || message.lost;
}

void IncomingMessages::place(Message& message, std::size_t offset, std::size_t bytes,
                             std::vector<MutableBytes>& parts) {
  if (message.whole || message.unwanted || message.lost) return;
  if (!has_place(message)) {
    // Only what arrives is touched. But the length is only the peer's word, and a lying peer must
    // not be able to end this process.
    message.kept.reset(new (std::nothrow) std::byte[message.length]);
    message.lost = message.kept == nullptr;
    if (message.lost) return;
  }
  if (message.kept) {
    parts.emplace_back(message.kept.get() + offset, bytes);
  } else {
    append_slice(message.spans, offset, bytes, parts);
  }
}

bool IncomingMessages::add(const MessagePointer& message, std::size_t offset, std::size_t bytes) {
  if (message->whole) return true;
  message->arrived += message->parts.add(offset, offset + bytes);
  if (message->arrived < message->length) return false;
  message->whole = true;
  if (message->ticket) hand_out(*message);
  close_if_over(message);
  return true;
}

void IncomingMessages::close_if_over(const MessagePointer& message) {
  if (!message->whole || !message->in_turn) return;
  closed_.add(message->number, message->number + 1);
  open_.erase(message->number);
}

void IncomingMessages::fail(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  expected_bytes_ = 0;
  for (auto& [tag, queue] : queues_) {
    for (Posted& posted : queue.posted) finish(*posted.ticket, why);
  }
  for (auto& [number, message] : open_) {
    if (message->ticket && !message->whole) finish(*message->ticket, why);
    message->whole = true;
  }
  queues_.clear();
  open_.clear();
  later_.clear();
}

}  // namespace rueda
