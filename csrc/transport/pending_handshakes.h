// Accepts connections for a rank: listens, and reads from new connections until it is known which
// rank each of them is. Is cheap no matter who connects, and keeps no rank out for long:
//
//   - At most `max_strangers` handshakes are pending. If more come, the oldest is rejected.
//   - One that is older than `handshake_timeout` is rejected (strangers.h defines both).
//   - At most 64 connections are accepted at each listener before others have their turn.
//   - Only the hello, 56 bytes, is read from a connection.
//   - If this process has no descriptor left, the oldest one is closed, or the one that waits.
//
// A rank that is rejected in such a crowd finds its connection closed before it was welcomed, and
// calls again. Rejections are logged as a warning, one per second.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"
#include "transport/epoll_set.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/socket_link.h"
#include "transport/strangers.h"

namespace rueda {

class PendingHandshakes {
 public:
  // Called within progress() and catch_up().
  struct Owner {
    // Whether `peer` may enter with this call of its own (handshake.h), which it has not used
    // before.
    std::function<bool(int peer, std::uint64_t call)> expects;
    // `peer` has proved who it is and been welcomed. Passes its connection, from which only the
    // hello has been read.
    std::function<void(int peer, std::uint64_t call, SocketLink link)> admit;
  };

  // `name` prefixes warnings. `handshake` must outlive this.
  PendingHandshakes(std::string name, const Handshake& handshake, std::vector<Listener> listeners,
                    Owner owner, Duration timeout = handshake_timeout);
  // False if the system has no descriptor for it; errno says why. Call before everything below.
  [[nodiscard]] bool open();

  // Readable if progress() has something to do.
  [[nodiscard]] int wait_fd() const { return watched_.fd(); }
  // Moves whatever can move without blocking.
  void progress();
  // Accepts and reads everything available, whether or not epoll has reported it.
  void catch_up();

  // Tells all pending connections that this rank has left, and accepts no more.
  void close();
  // Only closes descriptors, in arrays that never move. Async-signal-safe.
  void close_after_fork();

 private:
  enum class Source : std::uint32_t { listener, pending, timer };
  struct Pending {
    SocketLink link;
    Time since;  // it is connected
  };

  void accept_all();
  void make_room(const Listener& listener);
  void reject_overdue();
  void set_timer();
  void add(UniqueFd fd);
  Pending* oldest();
  void read_hello(Pending& pending);
  void welcome(Pending& pending, int peer, std::uint64_t call);
  void reject(Pending& pending, std::string_view why);
  void forget(Pending& pending);

  const std::string name_;
  const Handshake& handshake_;
  std::vector<Listener> listeners_;
  const Owner owner_;
  const Duration timeout_;
  EpollSet<Source> watched_;
  UniqueFd timer_;                              // expires when the oldest is overdue
  UniqueFd spare_;                              // given up for a moment when no other is left
  std::array<Pending, max_strangers> pending_;  // unordered; some may not be open
};

}  // namespace rueda
