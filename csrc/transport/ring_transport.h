// Moves bulk data between ranks that share memory, through a byte ring for each ordered pair.
//
// A message is copied into the ring and out of it. A slow receiver therefore makes its senders
// wait, and their bytes stay where they are; what arrives before its receive is kept on the
// receiver's heap.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/status.h"
#include "transport/byte_ring.h"
#include "transport/matching.h"
#include "transport/span_cursor.h"
#include "transport/transport.h"

namespace rueda {

// Holds one piece of the ring algorithm (Options::ring_chunk by default), so that sender and
// receiver overlap, and the two busy rings of a rank still fit into a core's cache, so that bytes
// go from cache to cache.
inline constexpr std::size_t default_ring_bytes = 256 << 10;

// Subclasses decide where the memory is and how to wake a peer.
class RingTransport : public Transport {
 public:
  [[nodiscard]] int rank() const final { return rank_; }
  [[nodiscard]] int size() const final { return static_cast<int>(place_of_.size()); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override;
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) final {
    return matching_.recv(peer, tag, spans);
  }
  bool progress() override;
  bool arm() final;
  void disarm() override;
  void fail(int peer, const Status& why) final;
  void abort(const Status& reason) final;

 protected:
  // For `rank` in a world of `size`. `ranks`: those it serves, ascending, including this one; a
  // rank's place among them is its number in all inboxes. `own`: this rank's inbox. All inboxes and
  // rings outlive this object.
  RingTransport(int rank, int size, const std::vector<int>& ranks, const Inbox& own);

  // Requested with the first message to a peer: its inbox, and a ring from this rank to it.
  struct Outlet {
    Inbox inbox;
    std::span<std::byte> ring;
  };
  virtual Expected<Outlet> open_outlet(int place) = 0;
  // The ring from a peer that has sent something.
  virtual std::span<const std::byte> find_inlet(int place) = 0;
  // The peer sleeps, or has announced that it is about to.
  virtual void wake(int place) = 0;

 private:
  struct PendingSend {
    Tag tag;
    SpanCursor<const std::byte> source;
    Ticket ticket;
    bool begun = false;
  };
  struct Peer {
    int rank;
    RingControl* arriving;
    std::optional<RingConsumer> in{};  // once something has come from it
    Inbox inbox{};                     // once something is sent to it, as `out`
    std::optional<RingProducer> out{};
    std::deque<PendingSend> sends{};
  };

  [[nodiscard]] int place_of(int peer) const { return place_of_[static_cast<std::size_t>(peer)]; }
  Peer& at(int place) { return peers_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] bool is_served(const Peer& peer) const {
    return peer.rank != rank_ && matching_.failure(peer.rank).ok();
  }
  Ticket send_to_itself(Tag tag, std::span<const ConstBytes> spans);
  Status open(int place);
  bool push(int place);
  bool push(int place, PendingSend& send);
  void publish(int place);
  bool drain(int place);
  void release(int place);
  [[nodiscard]] bool has_work(Peer& peer) const;
  void stay_awake();

  const int rank_;
  const Inbox own_;
  Matching matching_;
  std::vector<int> place_of_;  // of each rank of the world; -1 if it is not served
  std::vector<Peer> peers_;    // by place; this rank itself uses no ring
};

}  // namespace rueda
