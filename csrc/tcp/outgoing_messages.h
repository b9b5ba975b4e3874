// The messages from this rank to one peer, handed out in chunks to whichever stream is free. Pure:
// knows of no socket.
//
// A chunk is handed out, written to a stream, and acknowledged. What a stream that breaks had not
// had acknowledged is given back, and handed out again before everything else. Short messages are
// copied: their tickets are done once they have been written, those of others once all is
// acknowledged, since until then their bytes may have to be sent again.
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
  // Messages of up to so many bytes are copied.
  static constexpr std::size_t max_copied_bytes = 16 << 10;

  explicit OutgoingMessages(int peer) : peer_(peer) {}

  struct Message {
    std::uint64_t number = 0;
    std::uint64_t previous = 0;
    Tag tag;
    std::int32_t priority = 0;
    std::size_t length = 0;
    std::vector<ConstBytes> spans;      // the caller's, or of `copy`
    std::unique_ptr<std::byte[]> copy;  // of a short one
    std::size_t handed_out = 0;         // so many bytes from the beginning
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
    // Its bytes from the `skipped`-th on, where they lie: appended to `parts`.
    void append_to(std::vector<ConstBytes>& parts, std::size_t skipped = 0) const;
  };

  // What has a greater priority is handed out first, chunk by chunk: also before the rest of a
  // message that was begun.
  Ticket send(Tag tag, std::span<const ConstBytes> spans, std::int32_t priority = 0);

  // Whether there is something to hand out.
  [[nodiscard]] bool has_waiting() const { return !returned_.empty() || !waiting_.empty(); }
  // Whether anything has not been acknowledged.
  [[nodiscard]] bool has_unfinished() const { return unfinished_ > 0; }
  // The next chunk, of at most `max_bytes`; nothing where nothing waits.
  [[nodiscard]] std::optional<Chunk> take(std::size_t max_bytes);
  // The stream that took it has not written it, or has broken. The last first, so that they go out
  // again in the same order.
  void give_back(Chunk chunk) { returned_.push_front(std::move(chunk)); }
  // All of it has been accepted by the system.
  void mark_written(Chunk& chunk);
  // All of it has arrived. Each chunk once.
  void acknowledge(const Chunk& chunk);

  // Completes what is not done with `why`, and forgets everything. Chunks that were handed out are
  // not to be given back.
  void fail(const Status& why);
  // The same where all has arrived.
  void finish_all() { fail({}); }

 private:
  // Of one tag: what ChunkHeader::previous is taken from.
  struct Chain {
    std::uint64_t last = 0;
    std::size_t unfinished = 0;
  };

  void finish_one(const Message& message);

  const int peer_;
  std::uint64_t messages_ = 0;
  std::deque<std::shared_ptr<Message>> waiting_;  // not all handed out; in order
  std::deque<Chunk> returned_;
  std::unordered_map<Tag, Chain> chains_;  // of messages that are not acknowledged
  std::unordered_map<std::uint64_t, std::shared_ptr<Message>> open_;  // whose tickets are not done
  std::size_t unfinished_ = 0;
};

}  // namespace rueda
