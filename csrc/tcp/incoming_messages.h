// The messages of one peer as they come in, in chunks, in any order and perhaps twice. Pairs them
// with the receives that are posted: among those of one tag, in the order in which they were sent.
// Pure: knows of no socket.
//
// The bytes of a chunk go straight into the posted buffers where the receive is known when the
// message begins, and to the heap where it is not.
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

  // A chunk begins to arrive, of this message. ErrorCode::transport where no rank sends such a one.
  [[nodiscard]] Expected<MessagePointer> begin(const ChunkHeader& header);
  // Where these bytes of it go: appended to `parts`. None where nobody wants them any more, since
  // the message is whole already or was given up. To be asked again before each use.
  static void place(Message& message, std::size_t offset, std::size_t bytes,
                    std::vector<MutableBytes>& parts);
  // These bytes of it have been put there. Whether it is whole, so that its sender may know.
  bool add(const MessagePointer& message, std::size_t offset, std::size_t bytes);

  // Completes every receive, and every later one, with `why`, and forgets what has arrived.
  void fail(const Status& why);

 private:
  struct Posted {
    std::vector<MutableBytes> spans;
    std::size_t length = 0;
    Ticket ticket;
  };
  // Of one tag. Not both at once.
  struct Queue {
    std::deque<Posted> posted;
    std::deque<MessagePointer> unexpected;
  };

  [[nodiscard]] bool is_in_turn(std::uint64_t number) const;
  void take_turn(const MessagePointer& message);
  void match(Message& message, Posted posted);
  static void hand_out(Message& message);
  void close_if_over(const MessagePointer& message);

  const int peer_;
  std::unordered_map<std::uint64_t, MessagePointer> open_;   // known, and not closed
  IntervalSet closed_;                                       // in turn and whole
  std::unordered_map<std::uint64_t, MessagePointer> later_;  // by the message they come after
  std::unordered_map<Tag, Queue> queues_;                    // none is empty
  Status failure_;
};

}  // namespace rueda
