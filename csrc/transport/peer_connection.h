// The two connections between this rank and one peer over one path (peer_paths.h): this rank opens
// one, over which it sends; the peer opens the other, over which this rank receives. So two
// attempts never collide.
//
// Only good-byes go both ways: over the connection that this rank has opened, a leaving peer says
// whether frames of its own, on the other connection, are still to be waited for.
//
// A broken connection is a suspicion, not yet a loss. There may be a good-bye to read on either
// connection. A peer that never welcomed this rank may have rejected it in a crowd, so it is called
// again, three times in all. settle() decides. If this process has no descriptor left, that is no
// suspicion: it tries again, and in the end it is this rank that fails.
//
// Between hosts, a network or a firewall may reset connections and refuse new ones while the peer
// lives. Only a connection that was closed after it was welcomed shows that the peer's process has
// ended: then the loss has the reason ErrorReason::ended, otherwise refused or unreachable. A rank
// that counts a peer as lost although it may live resets the connections instead of closing them.
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

// A path to a peer.
struct PeerPath {
  static constexpr std::size_t max_paths = 16;

  int peer = 0;
  std::size_t number = 0;  // below max_paths

  // Of all paths of a rank.
  [[nodiscard]] std::size_t index() const {
    return static_cast<std::size_t>(peer) * max_paths + number;
  }
  static PeerPath at(std::size_t index) {
    return {static_cast<int>(index / max_paths), index % max_paths};
  }
};

class PeerConnection {
 public:
  // Shared by the connections of one rank; outlives them.
  struct Context {
    const Handshake& handshake;
    EpollSet<Watched>& watched;  // contains the connections under their PeerPath's index
    Duration network_timeout;    // with a network that does not answer
    Duration reopen_pause;       // before a path that failed is tried again
    // A message of the peer. May call send().
    std::function<void(PeerPath from, std::span<const std::byte> payload)> on_message;
    // The first frame over a path opened again: the peer had sent `count` messages before. An error
    // if it must not come here.
    std::function<Status(PeerPath from, std::uint64_t count)> on_resume;
    // Call settle() later, not now: the caller may be in the middle of a frame.
    std::function<void(PeerPath at)> on_suspicion;
    // Something is to be tried again, or decided, in a while: call look_again() then.
    std::function<void(PeerPath at, Duration pause)> on_pause;
  };

  // `address` is where the peer listens, in the form of socket.h; `own_host` where the connection
  // to it begins, if not empty.
  PeerConnection(PeerPath path, std::string address, std::string own_host, const Context& context);

  struct State {
    // Nothing more can come: the peer is lost, or it has said good-bye and all its frames have been
    // delivered.
    bool has_left = false;
    // Either connection has ever existed: the peer says good-bye only over these.
    bool was_connected = false;
    bool has_incoming = false;     // the peer's connection is open
    bool is_sending = false;       // this rank's is: the peer may have messages to read there
    bool is_suspect = false;       // it has failed, although settle() has not decided yet
    bool is_given_up = false;      // the same, and nothing but time can change it
    bool is_flushed = false;       // after say_good_bye(): all that was queued is on its way
    std::size_t queued_bytes = 0;  // with what is kept until the peer has let this rank in
  };
  [[nodiscard]] State state() const;

  // Opens the outgoing connection, unless that was done before, with this call (handshake.h). Does
  // not wait. `sent`: how many messages this rank has sent to the peer, over other paths or before
  // renew().
  void open(std::uint64_t call, std::uint64_t sent);
  // Waits until the connection that open() began is established. ErrorCode::initialization, with
  // the peer, if it cannot be reached, or not by the deadline.
  [[nodiscard]] Status finish_opening(Time deadline);
  // Queues a frame with this payload; open() comes first. Never blocks. Dropped if the peer has
  // left or is about to.
  void send(std::span<const std::byte> payload);
  // Takes over the connection that the peer has opened and on which it was welcomed.
  void admit(SocketLink incoming);
  // `events` (EPOLLIN, ...) have come for one of the connections.
  void progress(Watched source, std::uint32_t events);

  // Continues what has paused: the outgoing connection, for which there was no descriptor or memory
  // before, or settle(). An error if that has lasted so long that this rank cannot go on, whatever
  // its peers do.
  [[nodiscard]] Status look_again();

  // This rank suspects the path itself.
  void give_up(const Status& cause);
  // Resets what is open, and begins anew, as if nothing had been opened yet.
  void renew();
  // Closes both: nothing more comes, nor is sent. After a reset the peer does not take this process
  // for ended.
  enum class Ending : std::uint8_t { close, reset };
  void drop(Ending how);

  // The peer's process is known to have ended: it writes nothing more to the connections, which the
  // kernel has yet to close. A suspicion if there is a connection, or as soon as one is opened. A
  // peer that has left and is not connected is not lost.
  void note_end();

  // Reads everything available and resolves a suspicion. If it was a loss, returns its cause.
  [[nodiscard]] std::optional<Status> settle();

  // The end, in three steps: say_good_bye(), then progress until it is flushed, then close().
  // `more_to_come`: the peer has messages to read over some path before it has all.
  void say_good_bye();
  void close(bool more_to_come);

  // Only closes descriptors. Async-signal-safe.
  void close_after_fork();

  // Reads everything available.
  void catch_up();

 private:
  void connect();
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
  void forget(SocketLink& link, Ending how = Ending::close);

  const PeerPath path_;
  const std::string address_;
  const std::string own_host_;
  const bool is_on_other_host_;
  const uid_t user_;  // of this process when the world was formed; owns the peer's socket
  const Context& context_;
  SocketLink outgoing_;
  SocketLink incoming_;
  std::uint64_t call_ = 0;           // of the outgoing connection
  int attempts_ = 0;                 // to open the outgoing connection
  std::optional<Time> lacks_since_;  // resources to open one; what is to be sent waits
  Status shortage_;
  Status first_failure_;       // of those attempts
  bool welcomed_ = false;      // the peer has let the outgoing connection in
  bool was_admitted_ = false;  // this rank has let the peer's in
  std::optional<Status> suspicion_;
  std::optional<Time> decides_at_;  // at the latest, while settle() waits for the peer's close
  bool may_call_again_ = false;     // the only suspicious thing is an outgoing one not welcomed
  bool has_ended_ = false;          // the peer's process
  bool is_leaving_ = false;         // has said good-bye; its last frames are in transit
  bool has_left_ = false;
};

}  // namespace rueda
