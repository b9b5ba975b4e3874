// Carries small messages between ranks and notices when a rank is gone. Separate from the bulk
// transport, so that negotiation never waits behind gradients and a thread can sleep on it.
//
// Not thread-safe: every call comes from the thread that holds the engine's progress lock.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/peer_end.h"

namespace rueda {

class ControlLane {
 public:
  using MessageHandler = std::function<void(int peer, std::span<const std::byte> message)>;
  // `cause` says how the loss was noticed. Called at most once per peer; for this rank itself if it
  // has long been unable to open a connection, which is not its peers' fault.
  using LossHandler = std::function<void(int peer, const Status& cause)>;

  virtual ~ControlLane() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Set before the first progress(); handlers run inside progress() and may call post().
  virtual void on_message(MessageHandler handler) = 0;
  virtual void on_loss(LossHandler handler) = 0;

  // Opens a connection to each of `peers`, whose loss is noticed from then on. Connections opened
  // lazily (by the first post) are watched as well. Fails, naming the peer, at the deadline.
  virtual Status connect(std::span<const int> peers, Time deadline) = 0;

  // Treats the end of the peer's process, which `end` reports, as its loss, if the peer is
  // connected or is to be.
  virtual void watch_end(int /*peer*/, PeerEnd /*end*/) {}

  // Queues a message; never blocks. Messages from one rank to another arrive whole and in order.
  // `peer` may be this rank. A message to a peer that is lost or has said good-bye is silently
  // dropped: the loss handler has reported a loss, or will.
  virtual void post(int peer, std::vector<std::byte> message) = 0;

  // Whether nothing more can come from `peer`: it is lost, or it has said good-bye and everything
  // that it sent before has been delivered.
  [[nodiscard]] virtual bool has_left(int peer) const = 0;
  // Whether this rank and `peer` have ever been connected. If not, this rank got no good-bye of the
  // peer, and what looks like a loss may be a clean departure.
  [[nodiscard]] virtual bool was_connected(int /*peer*/) const { return true; }

  // Moves whatever can move without blocking; returns whether anything did.
  virtual bool progress() = 0;

  // A descriptor that is readable if progress() would do something.
  [[nodiscard]] virtual int wait_fd() const = 0;

  // Says good-bye to every connected peer, so that closing is not mistaken for death, and flushes
  // what is queued until the deadline.
  virtual Status close(Time deadline) = 0;

  // In a forked child: closes this process's copies of the sockets, so that peers notice the death
  // of the parent even while its children (DataLoader workers) live on. Async-signal-safe.
  virtual void close_after_fork() {}
};

}  // namespace rueda
