// The messages from one peer. Their chunks arrive in any order, and possibly twice. Matches
// messages to posted receives: for each tag, in the order in which they were sent. Pure: no
// sockets.
//
// If the receive is known when its message begins, the bytes go straight into the posted buffers,
// otherwise to the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "tcp/chunk_header.h"
#include "tcp/interval_set.h"
#include "transport/transport.h"

namespace rueda {

class IncomingMessages {
 public:
  explicit IncomingMessages(int peer) : peer_(peer) {}

  class Message;
  using MessagePointer = std::shared_ptr<Message>;

  Ticket recv(Tag tag, std::span<const MutableBytes> spans);

  // A chunk of this message begins to arrive. ErrorCode::transport if no rank sends such a chunk.
  [[nodiscard]] Expected<MessagePointer> begin(const ChunkHeader& header);
  // Whether place() has somewhere to put its bytes without allocating memory, or drops them.
  [[nodiscard]] static bool has_place(const Message& message);
  // Appends to `parts` where these bytes of the message go. Nothing if they are no longer wanted,
  // since the message is complete or was abandoned. Call again before each use.
  static void place(Message& message, std::size_t offset, std::size_t bytes,
                    std::vector<MutableBytes>& parts);
  // These bytes have been stored. Returns whether the message is complete, so its sender may be
  // told.
  bool add(const MessagePointer& message, std::size_t offset, std::size_t bytes);

  // The length of all messages that are expected and have not arrived whole.
  [[nodiscard]] std::size_t expected_bytes() const { return expected_bytes_; }

  // Completes all current and later receives with `why`, and drops what has arrived.
  void fail(const Status& why);

 private:
  struct Posted {
    std::vector<MutableBytes> spans;
    std::size_t length = 0;
    Ticket ticket;
  };
  // For one tag. At most one of the two is non-empty.
  struct Queue {
    std::deque<Posted> posted;
    std::deque<MessagePointer> unexpected;
  };

  [[nodiscard]] bool is_in_turn(std::uint64_t number) const;
  void take_turn(const MessagePointer& message);
  void match(Message& message, Posted posted);
  void hand_out(Message& message);
  void close_if_over(const MessagePointer& message);

  const int peer_;
  std::unordered_map<std::uint64_t, MessagePointer> open_;   // known and not closed
  IntervalSet closed_;                                       // in turn and complete
  std::unordered_map<std::uint64_t, MessagePointer> later_;  // by the message they follow
  std::unordered_map<Tag, Queue> queues_;                    // none is empty
  std::size_t expected_bytes_ = 0;
  Status failure_;
};

}  // namespace rueda
