// Pairs messages that arrive with receives that were posted, in either order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "transport/span_cursor.h"
#include "transport/transport.h"

namespace rueda {

// A ticket that is done from the start.
[[nodiscard]] Ticket finished_ticket(int peer, Status status);
void finish(Transfer& transfer, Status status);

// For a transport of `size` ranks that receives, from each peer, one message after the other, each
// in one or more pieces. A piece goes straight into the posted buffers if the receive is known by
// then, otherwise to the heap. Not thread-safe.
class Matching {
 public:
  explicit Matching(int size)
      : current_(static_cast<std::size_t>(size)), failures_(current_.size()) {}

  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans);

  // A message of `length` bytes begins to arrive; one of length 0 is then complete.
  void begin(int peer, Tag tag, std::size_t length);
  // The next bytes of the latest message. Never more than unread(peer).
  void append(int peer, ConstBytes piece);
  // How many bytes of the current message are still missing.
  [[nodiscard]] std::size_t unread(int peer) const;

  // Completes every pending and later receive from `peer` with `why`, and drops what has arrived
  // from it: nothing more may be begun or appended. The first reason counts.
  void fail(int peer, const Status& why);
  // The reason; ok while nothing has failed.
  [[nodiscard]] const Status& failure(int peer) const {
    return failures_[static_cast<std::size_t>(peer)];
  }

 private:
  struct Posted {
    SpanCursor<std::byte> target;
    Ticket ticket;
  };
  struct Arrival {
    int peer = -1;
    Tag tag;
    std::size_t length = 0;
    std::size_t arrived = 0;
    std::unique_ptr<std::byte[]> kept;  // while no receive is matched
    SpanCursor<std::byte> target;       // afterwards, with `ticket`
    Ticket ticket;                      // also empty if the bytes are not wanted any more
  };
  struct Key {
    int peer;
    Tag tag;

    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<Tag>()(key.tag) + static_cast<std::size_t>(key.peer);
    }
  };
  struct Queue {
    std::deque<Posted> posted;
    std::deque<std::shared_ptr<Arrival>> unexpected;
  };

  static void match(Arrival& arrival, Posted posted);
  static void finish_if_whole(Arrival& arrival);

  std::unordered_map<Key, Queue, Hash> queues_;    // none is empty
  std::vector<std::shared_ptr<Arrival>> current_;  // by peer; null between messages
  std::vector<Status> failures_;                   // by peer
};

}  // namespace rueda
