// Messages to be transferred between this rank and others, by direction, peer and tag. Messages
// that have all three in common form a stream. They are transferred in the order in which they were
// added but may finish in any order, so tickets are completed from the front of the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace rueda::mpi {

// `Arrival`: something that came before its receive, and waits in the stream.
template <class Arrival>
class MessageStreams {
 public:
  struct Segment {
    std::byte* address;
    std::size_t length;
  };
  struct Stream;
  struct Message {
    Stream* stream;
    Ticket ticket;
    std::vector<Segment> segments = {};
    std::size_t length = 0;  // of the caller's spans
    std::size_t moved = 0;   // bytes of the pieces handed over
    int in_flight = 0;       // pieces still in use by someone
    bool ended = false;      // there are no further pieces
    Status status = {};
    std::vector<std::unique_ptr<std::byte[]>> discarded = {};  // pieces that do not fit
  };
  struct Stream {
    std::uint64_t key;
    bool receiving;
    int peer;
    int tag;
    std::list<Message> messages = {};
    std::list<Arrival> arrivals = {};
  };

  [[nodiscard]] bool empty() const { return streams_.empty(); }
  [[nodiscard]] Stream& find(bool receiving, int peer, int tag);
  // The streams with one peer in one direction.
  [[nodiscard]] std::vector<Stream*> all_of(bool receiving, int peer);
  // Appends a message to its stream.
  template <class Spans>
  Message& add(Stream& stream, const Spans& spans);

  // Peers that still have pieces to send, and for how many messages.
  [[nodiscard]] const std::map<int, int>& awaited() const { return awaited_; }
  // A message has no further pieces. The first error counts.
  void end(Message& message, const Status& status);
  // Completes the tickets that are next in order. May remove `stream`.
  void complete_front(Stream& stream);
  // Completes with `why`, and removes, all pending messages in the concerned streams. Leaks their
  // discarded pieces: someone may still write to them.
  template <class Concerned>
  void drop(const Concerned& concerned, const Status& why);

 private:
  std::unordered_map<std::uint64_t, Stream> streams_;
  std::map<int, int> awaited_;
};

template <class Arrival>
auto MessageStreams<Arrival>::find(bool receiving, int peer, int tag) -> Stream& {
  const std::uint64_t key = (std::uint64_t{receiving} << 63) |
                            (static_cast<std::uint64_t>(peer) << 32) |
                            static_cast<std::uint32_t>(tag);
  return streams_.try_emplace(key, Stream{key, receiving, peer, tag}).first->second;
}

template <class Arrival>
auto MessageStreams<Arrival>::all_of(bool receiving, int peer) -> std::vector<Stream*> {
  std::vector<Stream*> found;
  for (auto& [key, stream] : streams_) {
    if (stream.receiving == receiving && stream.peer == peer) found.push_back(&stream);
  }
  return found;
}

template <class Arrival>
template <class Spans>
auto MessageStreams<Arrival>::add(Stream& stream, const Spans& spans) -> Message& {
  Message& message = stream.messages.emplace_back(Message{&stream, std::make_shared<Transfer>()});
  message.ticket->peer = stream.peer;
  message.segments.reserve(spans.size());
  for (const auto span : spans) {
    if (span.empty()) continue;
    // One type for both directions; a send only reads.
    message.segments.push_back({const_cast<std::byte*>(span.data()), span.size()});
    message.length += span.size();
  }
  if (stream.receiving) ++awaited_[stream.peer];
  return message;
}

template <class Arrival>
void MessageStreams<Arrival>::end(Message& message, const Status& status) {
  if (!message.ended && message.stream->receiving) {
    const auto awaited = awaited_.find(message.stream->peer);
    if (--awaited->second == 0) awaited_.erase(awaited);
  }
  message.ended = true;
  if (message.status.ok()) message.status = status;
}

template <class Arrival>
void MessageStreams<Arrival>::complete_front(Stream& stream) {
  while (!stream.messages.empty()) {
    Message& front = stream.messages.front();
    if (!front.ended || front.in_flight > 0) return;
    front.ticket->status = std::move(front.status);
    front.ticket->done = true;
    stream.messages.pop_front();
  }
  if (!stream.arrivals.empty()) return;
  const std::uint64_t key = stream.key;
  streams_.erase(key);
}

template <class Arrival>
template <class Concerned>
void MessageStreams<Arrival>::drop(const Concerned& concerned, const Status& why) {
  for (auto each = streams_.begin(); each != streams_.end();) {
    Stream& stream = (each++)->second;  // may be removed
    if (!concerned(stream)) continue;
    for (Message& message : stream.messages) {
      message.ticket->status = why;
      message.ticket->done = true;
      for (auto& piece : message.discarded) static_cast<void>(piece.release());
    }
    if (stream.receiving) awaited_.erase(stream.peer);
    streams_.erase(std::uint64_t{stream.key});
  }
}

}  // namespace rueda::mpi
