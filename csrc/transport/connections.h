// One rank's connections to the others of its world, over Unix sockets or TCP. They are opened when
// needed, authenticated by a handshake (handshake.h, pending_handshakes.h), and closed with a
// good-bye; the end of all to a peer without one is its loss (peer_connection.h, peer_paths.h).
// Carries frames from rank to rank, whole and in order, and knows nothing of their meaning.
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"
#include "transport/epoll_set.h"
#include "transport/handshake.h"
#include "transport/key.h"
#include "transport/peer_connection.h"
#include "transport/peer_end.h"
#include "transport/peer_paths.h"
#include "transport/pending_handshakes.h"
#include "transport/socket.h"

namespace rueda {

class Connections {
 public:
  // Called within progress(), and not once close() has begun. May call send() and wake().
  struct Handlers {
    // A frame of `peer`, up to 1 GiB, valid until this returns.
    std::function<void(int peer, std::span<const std::byte> payload)> on_message;
    // Once per peer, after everything that it had sent. `cause` says how the loss was noticed
    // (ErrorCode::peer_lost). Called for this rank itself if it cannot open connections any more.
    std::function<void(int peer, const Status& cause)> on_loss;
    // wake() was called.
    std::function<void()> on_wake;
  };
  struct Settings {
    std::string name;           // for messages: "control lane"
    std::string_view protocol;  // 8 characters that distinguish these connections from others
    int rank = 0;
    // Of each rank, as this one reaches it (socket.h); of those on other hosts one for each of
    // their interfaces.
    std::vector<std::vector<std::string>> addresses;
    std::vector<Listener> listeners;                     // of this rank
    Key key;                                             // of the world, derived for this protocol
    Duration network_timeout = default_network_timeout;  // with a network that does not answer
    // This rank's addresses for other hosts, one for each of its interfaces, as it is called there.
    std::vector<std::string> own_hosts = {};
    Duration reopen_pause = std::chrono::seconds(2);  // before a path that failed is tried again
  };

  Connections(Settings settings, Handlers handlers);
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Call first. ErrorCode::transport if the system has no descriptors left.
  [[nodiscard]] Status open();

  [[nodiscard]] int rank() const { return handshake_.rank(); }
  [[nodiscard]] int size() const { return handshake_.size(); }
  // Whether neither close() nor close_after_fork() has been called.
  [[nodiscard]] bool is_running() const { return phase_ == Phase::running; }
  // Whether nothing more can come from `peer`: it is lost, or it has said good-bye and everything
  // that it sent before has been delivered.
  [[nodiscard]] bool has_left(int peer) const;
  // Whether there has ever been a connection with `peer`, over which it would have said good-bye.
  [[nodiscard]] bool was_connected(int peer) const;
  // Readable if progress() would do something.
  [[nodiscard]] int wait_fd() const { return watched_.fd(); }

  // Opens a connection to each of `peers` except this rank, and waits for it. Their losses are
  // noticed from then on. ErrorCode::initialization, with the peer, if one cannot be reached, or
  // not by the deadline.
  [[nodiscard]] Status connect(std::span<const int> peers, Time deadline);
  // Queues a frame for another rank, and opens a connection to it if there is none; never blocks.
  // Dropped if the peer has left (on_loss reports it, if it was a loss), and after close().
  void send(int peer, std::span<const std::byte> payload);
  // Makes wait_fd() readable and the next progress() call on_wake. May be called at any time
  // between open() and close().
  void wake();
  // Treats the end of the process of a connected peer, or of one that is to be connected, as its
  // loss, like the end of a connection. Not after close().
  void watch_end(int peer, PeerEnd end);
  // Moves whatever can move without blocking; returns whether anything did.
  bool progress();

  // Says good-bye to every connected peer and sends what is queued, until the deadline. Returns the
  // peers to which not everything was sent, ascending. Does nothing when called again.
  [[nodiscard]] std::vector<int> close(Time deadline);
  // In a forked child: only closes this process's copies of the descriptors, in arrays that never
  // move. Async-signal-safe.
  void close_after_fork();

 private:
  enum class Phase : std::uint8_t { running, closing, closed };

  PeerPaths& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  void handle_event(const EpollSet<Watched>::Event& event);
  void handle_wake();
  void look_at_ending();
  void look_again();
  void pause(PeerPath path, Duration length);
  void set_next_look_again();
  bool settle_suspicions();
  [[nodiscard]] std::vector<int> unflushed();

  const std::string name_;
  const Handshake handshake_;
  const Handlers handlers_;
  EpollSet<Watched> watched_;
  UniqueFd wake_;  // readable after wake() or while there is a suspicion
  const PeerConnection::Context context_;
  std::vector<PeerPaths> peers_;
  PendingHandshakes pending_;
  std::vector<PeerPath> suspects_;
  struct Paused {
    PeerPath path;
    Time until;
  };
  std::vector<Paused> paused_;  // see PeerConnection::Context::on_pause
  UniqueFd next_look_again_;    // timer for the earliest of them
  bool is_stuck_ = false;
  std::map<int, PeerEnd> ends_;  // by peer
  std::vector<int> ending_;      // peers whose end descriptor has been readable
  UniqueFd next_look_;           // timer for `ending_`
  Duration look_pause_{};
  bool look_is_due_ = false;
  Phase phase_ = Phase::running;
};

}  // namespace rueda
