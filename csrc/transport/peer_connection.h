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
    Duration patience;           // with a network that does not answer
    Duration reopen_pause;       // before a path that failed is tried again
    // A message of the peer. May call send(). An error if it must not come here.
    std::function<Status(PeerPath from, std::span<const std::byte> payload)> on_message;
    // The first frame over a path opened again: the peer had sent `count` messages before.
    // Likewise.
    std::function<Status(PeerPath from, std::uint64_t count)> on_resume;
    // Call settle() later, not now: the caller may be in the middle of a frame.
    std::function<void(PeerPath at)> on_suspicion;
    // Something is to be tried again, or decided, in a while: call look_again() then.
    std::function<void(PeerPath at, Duration pause)> on_pause;
  };

  // `address` is where the peer listens, in the form of socket.h; `own_host` where the connection
  // to it begins, if not empty.
  PeerConnection(PeerPath path, std::string address, std::string own_host, const Context& context);

  [[nodiscard]] const std::string& address() const { return address_; }
  // Whether nothing more can come: the peer is lost, or it has said good-bye and all its frames
  // have been delivered.
  [[nodiscard]] bool has_left() const { return has_left_; }
  // Whether either connection has ever existed: the peer says good-bye only over these.
  [[nodiscard]] bool was_connected() const { return welcomed_ || was_admitted_; }
  // Whether the peer may open its connection to this rank with this call (handshake.h): it has not
  // used it before, and no earlier one is open.
  [[nodiscard]] bool expects_incoming() const { return !incoming_.is_open() && !has_left_; }
  [[nodiscard]] bool is_new(std::uint64_t call) const { return !admitted_ || call > *admitted_; }
  // Which path it is meant for; perhaps none.
  [[nodiscard]] static std::size_t path_of(std::uint64_t call);
  // Whether it has failed, although settle() has not decided yet.
  [[nodiscard]] bool is_suspect() const { return suspicion_.has_value(); }
  // What is queued, or kept until the peer has let this rank in.
  [[nodiscard]] std::size_t queued_bytes() const { return outgoing_.queued_bytes(); }

  // Opens the outgoing connection, unless that was done before. Does not wait. `sent`: how many
  // messages this rank has sent to the peer, over other paths or before renew().
  void open(std::uint64_t sent = 0);
  // Waits until the connection that open() began is established. ErrorCode::initialization, with
  // the peer, if it cannot be reached, or not by the deadline.
  [[nodiscard]] Status finish_opening(Time deadline);
  // Queues a frame with this payload; open() comes first. Never blocks. Dropped if the peer has
  // left or is about to.
  void send(std::span<const std::byte> payload);
  // Takes over the connection that the peer has opened with `call` and on which it was welcomed.
  void admit(std::uint64_t call, SocketLink incoming);
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
  // Closes both: nothing more comes, nor is sent.
  void drop();
  // The same by a reset, after which the peer does not take this process for ended.
  void drop_by_reset();

  // The peer's process is known to have ended: it writes nothing more to the connections, which the
  // kernel has yet to close. A suspicion if there is a connection, or as soon as one is opened. A
  // peer that has left and is not connected is not lost.
  void note_end();

  // Reads everything available and resolves a suspicion. If it was a loss, returns its cause.
  [[nodiscard]] std::optional<Status> settle();

  // The end, in three steps: say_good_bye(), then progress until is_flushed(), then close().
  void say_good_bye();
  [[nodiscard]] bool is_flushed() const;
  void close();

  // Only closes descriptors. Async-signal-safe.
  void close_after_fork();

  // Reads everything available.
  void catch_up();

 private:
  [[nodiscard]] static std::uint64_t call_of(std::size_t path, std::uint32_t number);
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

  const PeerPath path_;
  const std::string address_;
  const std::string own_host_;
  const bool is_on_other_host_;
  const uid_t user_;  // of this process when the world was formed; owns the peer's socket
  const Context& context_;
  SocketLink outgoing_;
  SocketLink incoming_;
  std::uint64_t call_;                     // of the outgoing connection
  std::optional<std::uint64_t> admitted_;  // the latest call of the peer
  int attempts_ = 0;                       // to open the outgoing connection
  std::optional<Time> lacks_since_;        // resources to open one; what is to be sent waits
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
