// All paths to one peer: one within a host, and between hosts one for each network interface, up to
// 16, each with connections of its own (peer_connection.h).
//
// Every message goes over every path, in the same order. The receiver takes it from the path on
// which it comes first, and drops the others. So a path that is cut, or goes silent, stops and
// delays nothing, and nothing needs to be acknowledged. Messages are small (control_lane.h); for
// gradients, whose chunks are acknowledged, see csrc/tcp.
//
// A path that fails is opened again after two seconds. Its first frame says how many messages came
// before, which the peer gets over the other paths. The peer is lost if no path is left that has
// ever worked since it was opened; if those that are left have not brought all messages before
// theirs; or if its process has ended: that is known of all paths at once.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/peer_connection.h"
#include "transport/socket_link.h"

namespace rueda {

class PeerPaths {
 public:
  // `addresses`: where the peer listens. `own_hosts`: where the path of each begins; missing ones
  // are the system's choice. The callbacks of `context` are to call is_next(), resume(), settle()
  // and look_again().
  PeerPaths(int peer, const std::vector<std::string>& addresses,
            const std::vector<std::string>& own_hosts, const PeerConnection::Context& context);

  // As PeerConnection has them.
  [[nodiscard]] bool has_left() const { return has_left_; }
  [[nodiscard]] bool was_connected() const;
  void open();
  [[nodiscard]] Status finish_opening(Time deadline);
  void send(std::span<const std::byte> payload);
  void progress(std::size_t path, Watched source, std::uint32_t events);
  [[nodiscard]] Status look_again(std::size_t path);
  void note_end();
  void say_good_bye();
  void close();
  void close_after_fork();

  // Whether the peer may open a connection with this call (handshake.h).
  [[nodiscard]] bool expects(std::uint64_t call) const;
  void admit(std::uint64_t call, SocketLink incoming);
  // Whether what has come over this path is the next message, to be delivered.
  [[nodiscard]] bool is_next(std::size_t path);
  // The peer had sent `count` messages before those that come over this path now.
  [[nodiscard]] Status resume(std::size_t path, std::uint64_t count);
  // Resolves a suspicion against a path. If the peer is lost, returns the cause.
  [[nodiscard]] std::optional<Status> settle(std::size_t path);
  // Whether what was sent, with the good-bye, is on its way over each path, or has been for half a
  // second over one.
  [[nodiscard]] bool is_flushed(Time now);

 private:
  struct Path {
    PeerConnection connection;
    std::string address;         // of the peer
    std::uint32_t renewals = 0;  // so that each call of this rank has a number of its own
    std::optional<std::uint32_t> admitted = {};  // the number of the peer's latest call
    std::uint64_t received = 0;  // messages, with those that came before it was opened again
    bool is_alive = true;        // otherwise it waits until it is opened again
    bool is_retried = false;     // has been opened again
    bool is_reported = false;    // that it does not work
    bool has_departed = false;   // the peer has said good-bye over it; it is not alive
    Time reopens_at{};           // while it is not alive
  };

  [[nodiscard]] bool is_complete(const Path& path) const { return path.received <= delivered_; }
  // Whether messages go over it, or are to, since it is opened for the first time.
  [[nodiscard]] bool carries(const Path& path) const;
  [[nodiscard]] bool has_other(const Path& than) const;
  [[nodiscard]] PeerPath as_peer_path(const Path& path) const;
  void open(Path& path);
  void renew(Path& path);
  void suspend(Path& path, const Status& cause);
  void note_return(Path& path);
  void note_departure(Path& path);
  void leave();
  void limit_queues();

  const int peer_;
  const PeerConnection::Context& context_;
  std::vector<Path> paths_;
  std::uint64_t sent_ = 0;       // messages
  std::uint64_t delivered_ = 0;  // messages, once each
  std::optional<Status> loss_;   // to be told by settle()
  std::optional<Time> flushed_since_;
  bool is_opened_ = false;          // this rank has something to send, or was to connect
  bool was_connected_ = false;      // over a path that was renewed since
  bool has_said_good_bye_ = false;  // the peer, over some path; more may come over others
  bool is_closing_ = false;
  bool has_left_ = false;
};

}  // namespace rueda
