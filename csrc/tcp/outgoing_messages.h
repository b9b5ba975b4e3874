// The messages from this rank to one peer, split into chunks for whichever stream is free. Pure: no
// sockets.
//
// A chunk is taken, written to a stream, and acknowledged. Chunks that a broken stream left
// unacknowledged are given back and sent again before anything else. Short messages are copied, and
// their tickets are done once written. Other messages are done once fully acknowledged, since until
// then their bytes may have to be sent again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "tcp/chunk_header.h"
#include "transport/transport.h"

namespace rueda {

class OutgoingMessages {
 public:
  // Messages of up to this size are copied.
  static constexpr std::size_t max_copied_bytes = 16 << 10;

  explicit OutgoingMessages(int peer) : peer_(peer) {}

  struct Message {
    std::uint64_t number = 0;
    std::uint64_t previous = 0;
    Tag tag;
    std::int32_t priority = 0;
    std::size_t length = 0;
    std::vector<ConstBytes> spans;      // the caller's, or those of `copy`
    std::unique_ptr<std::byte[]> copy;  // for a short message
    std::size_t handed_out = 0;         // bytes taken so far
    std::size_t unwritten = 0;
    std::size_t unacknowledged = 0;
    Ticket ticket;
  };
  // A part of a message. An empty message is one chunk without bytes.
  struct Chunk {
    std::shared_ptr<Message> message;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool written = false;  // before it was given back

    [[nodiscard]] ChunkHeader header() const;
    // Appends its bytes from `skipped` on to `parts`, without copying.
    void append_to(std::vector<ConstBytes>& parts, std::size_t skipped = 0) const;
  };

  // Messages of higher priority are sent first, chunk by chunk, even before the rest of a message
  // that has begun. So are those of operations that a process set has begun earlier: if all went in
  // the order of their calls, rings that run at once would all end late, since each waits in every
  // step for the steps of the others.
  Ticket send(Tag tag, std::span<const ConstBytes> spans, std::int32_t priority = 0);

  // Whether there is anything to take.
  [[nodiscard]] bool has_waiting() const { return !returned_.empty() || !waiting_.empty(); }
  // Whether anything has not been acknowledged.
  [[nodiscard]] bool has_unfinished() const { return unfinished_ > 0; }
  // The next chunk, of at most `max_bytes`; nullopt if nothing is waiting.
  [[nodiscard]] std::optional<Chunk> take(std::size_t max_bytes);
  // The stream that took it has not written it, or has broken. Give back the last chunk first, so
  // that they are sent again in the same order.
  void give_back(Chunk chunk) { returned_.push_front(std::move(chunk)); }
  // The system has accepted the whole chunk.
  void mark_written(Chunk& chunk);
  // The whole chunk has arrived. Call once per chunk.
  void acknowledge(const Chunk& chunk);

  // Completes everything unfinished with `why` and drops it. Chunks taken before must not be given
  // back.
  void fail(const Status& why);
  // The same, if everything has arrived.
  void finish_all() { fail({}); }

 private:
  // For one tag: the source of ChunkHeader::previous.
  struct Chain {
    std::uint64_t last = 0;
    std::size_t unfinished = 0;
  };

  void finish_one(const Message& message);

  const int peer_;
  std::uint64_t messages_ = 0;
  std::deque<std::shared_ptr<Message>> waiting_;  // not fully taken; in order
  std::deque<Chunk> returned_;
  std::unordered_map<Tag, Chain> chains_;                             // of unacknowledged messages
  std::unordered_map<std::uint64_t, std::shared_ptr<Message>> open_;  // tickets not done
  std::size_t unfinished_ = 0;
};

}  // namespace rueda
