// The two connections between this rank and one other: one that this rank has opened, over which it
// sends, and one that the peer has opened, over which it receives, so that no two meet half-way.
//
// Good-byes alone go both ways: over a connection that this rank has opened the peer says, when it
// leaves, whether its own frames, on the other connection, are still to be waited for.
//
// A connection that breaks is a suspicion, not yet a loss: a good-bye may be there to be read, on
// either connection, and a peer that never welcomed this rank has perhaps rejected it in a crowd,
// and is called again, three times in all. settle() finds out. That this process has no descriptor
// left is no suspicion: it tries again, and is the one that fails in the end.
//
// Between hosts a network, or what guards it, may reset connections and refuse new ones while the
// peer lives. Only a connection that was closed, after it had been welcomed, shows that the peer's
// process has ended; a loss has the reason ErrorReason::ended then, and refused or unreachable
// otherwise. Who counts a peer as lost that may live resets the connections, and does not close
// them.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/epoll_set.h"
#include "transport/handshake.h"
#include "transport/socket_link.h"

namespace rueda {

// What Connections watch.
enum class Watched : std::uint32_t { wake, pending, outgoing, incoming, life_line, ending, pause };

class PeerConnection {
 public:
  // What the connections of one rank have in common, and outlives them.
  struct Context {
    const Handshake& handshake;
    EpollSet<Watched>& watched;  // connections are in it under their peer's rank
    Duration patience;           // with a network that does not answer
    // A frame of the peer's, which is not a good-bye. May call send().
    std::function<void(int peer, std::span<const std::byte> payload)> on_message;
    // settle() is to be called, but not now: the caller may be in the middle of a frame.
    std::function<void(int peer)> on_suspicion;
    // Something is to be tried again, or decided, in a while: look_again() is to be called then.
    std::function<void(int peer)> on_pause;
  };

  // `address` is where the peer listens, as socket.h has it.
  PeerConnection(int peer, std::string address, const Context& context);

  // Whether nothing more can come: the peer is lost, or has said good-bye and all its frames have
  // been handed out.
  [[nodiscard]] bool has_left() const { return has_left_; }
  // Whether one of the two connections has ever been there: the peer says good-bye over these only.
  [[nodiscard]] bool was_connected() const { return welcomed_ || was_admitted_; }
  // Whether the peer may open its connection to this rank.
  [[nodiscard]] bool expects_incoming() const { return !incoming_.is_open() && !has_left_; }

  // Opens the outgoing connection, unless that was done before. Does not wait.
  void open();
  // Waits until the connection that open() began is there. ErrorCode::initialization, with the
  // peer, where it cannot be reached, or not until the deadline.
  [[nodiscard]] Status finish_opening(Time deadline);
  // Queues a frame with this payload, and opens the outgoing connection where there is none. Never
  // blocks. To a peer that has left, or is about to, it is dropped.
  void send(std::span<const std::byte> payload);
  // Takes the connection that the peer has opened and been welcomed on.
  void admit(SocketLink incoming);
  // `events` (EPOLLIN, ...) have come for one of the connections.
  void progress(Watched source, std::uint32_t events);

  // What has paused: the outgoing connection again, for which there was no descriptor or no memory
  // before, or settle(). An error where that has lasted so long that this rank cannot go on,
  // whatever its peers do.
  [[nodiscard]] Status look_again();

  // The peer's process has ended, as was noticed otherwise: nothing more is written on its side of
  // the connections, which the kernel has yet to close. A suspicion where there is one already or
  // as soon as one is to be opened; that the peer has left and is not connected is not a loss.
  void note_end();

  // Reads all that is there and decides what became of a suspicion. Where it was a loss: its cause.
  [[nodiscard]] std::optional<Status> settle();

  // The end, in three steps: say_good_bye(), then progress until is_flushed(), then close().
  void say_good_bye();
  [[nodiscard]] bool is_flushed() const;
  void close();

  // Only closes descriptors. Async-signal-safe.
  void close_after_fork();

 private:
  void call();
  void call_again();
  void wait_for_resources(const Status& cause);
  void write();
  void read(SocketLink& link, std::size_t bound = 1 << 20);
  [[nodiscard]] Status handle_frame(const Frame& frame, bool is_outgoing);
  [[nodiscard]] Status handle_first_frame(const Frame& frame);
  [[nodiscard]] bool awaits_close();
  [[nodiscard]] bool has_certainly_ended() const;
  [[nodiscard]] ErrorReason reason_of(const Status& cause) const;
  void suspect(const SocketLink& link, const Status& cause);
  void suspect_end();
  void forget(SocketLink& link);
  void forget_by_reset(SocketLink& link);

  const int peer_;
  const std::string address_;
  const bool is_on_other_host_;
  const uid_t user_;  // of this process when the world was formed: whose the peer's socket is
  const Context& context_;
  SocketLink outgoing_;
  SocketLink incoming_;
  int attempts_ = 0;                 // to open the outgoing connection
  std::optional<Time> lacks_since_;  // what it takes to open one; what is to be sent waits
  Status shortage_;
  Status first_failure_;       // of those attempts
  bool welcomed_ = false;      // the peer has let the outgoing connection in
  bool was_admitted_ = false;  // this rank has let the peer's in
  std::optional<Status> suspicion_;
  std::optional<Time> decides_at_;  // the latest, where settle() waits for the peer's close
  bool may_call_again_ = false;     // all that is suspicious is an outgoing one without a welcome
  bool has_ended_ = false;          // the peer's process
  bool is_leaving_ = false;         // has said good-bye, and its last frames are on their way
  bool has_left_ = false;
};

}  // namespace rueda
