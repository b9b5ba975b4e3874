// Everything between this rank and one peer that it reaches over TCP: the messages in both
// directions, the streams that carry them, and the number of streams.
//
// Each side opens the streams on which it sends, the first one with the first message. If streams
// break, others take over what they carried and new ones are opened. The peer counts as failed only
// once no stream could be opened for `reach_timeout`. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "tcp/incoming_messages.h"
#include "tcp/incoming_stream.h"
#include "tcp/outgoing_messages.h"
#include "tcp/outgoing_stream.h"
#include "tcp/stream_count.h"
#include "transport/epoll_set.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/socket_link.h"

namespace rueda {

// What a rank's TCP links watch. For a stream's index see TcpPeer::index_of.
enum class TcpWatched : std::uint32_t { handshakes, timer, outgoing, incoming };

class TcpPeer {
 public:
  static constexpr auto reach_timeout = std::chrono::seconds(10);

  // State shared by all peers of a rank.
  struct Context {
    int rank;  // this one
    const Handshake& handshake;
    const Key& key;  // for streams
    EpollSet<TcpWatched>& watched;
    // Requests progress() by this time; each progress() must ask again.
    std::function<void(Time)> call_at;
    // Addresses of this host, one per interface that carries data.
    std::vector<std::string> own_hosts;
  };

  // `addresses`: where the peer listens (transport/socket.h), one per interface.
  TcpPeer(int peer, std::vector<std::string> addresses, const Context& context);
  TcpPeer(const TcpPeer&) = delete;
  TcpPeer& operator=(const TcpPeer&) = delete;

  Ticket send(Tag tag, std::span<const ConstBytes> spans, std::int32_t priority = 0);
  // For a rank that is its own peer: copies immediately.
  Ticket send_to_itself(Tag tag, std::span<const ConstBytes> spans);
  Ticket recv(Tag tag, std::span<const MutableBytes> spans);

  // Whether another stream from the peer is welcome. A hello can be replayed by anyone who has
  // overheard it. So a stream that has not yet proved that the peer opened it just now makes room
  // for others, oldest first, and is closed after a time.
  [[nodiscard]] bool expects_stream() const;
  void admit(SocketLink link);

  // Events from epoll for one of its streams; progress() does the work.
  void mark_ready(TcpWatched source, std::size_t index, std::uint32_t events);
  static int peer_of(std::size_t index) { return static_cast<int>(index / slots); }
  // Moves what it can without blocking; returns whether anything moved.
  bool progress(Time now);
  // Whether progress() could continue immediately, although no event will announce it.
  [[nodiscard]] bool has_work() const;
  // Whether it could continue even if nothing is posted meanwhile.
  [[nodiscard]] bool has_unread() const;

  // Whether much is on its way to it or from it (transport.h).
  [[nodiscard]] bool awaits_much() const;

  // Completes everything with `why`, now and later. The first reason counts.
  void fail(const Status& why);
  // Treats what cannot be delivered to a peer that is gone as having arrived (transport.h).
  void end_in_order() { ends_in_order_ = true; }
  // This rank is leaving: opens a stream only if there is none for what must be sent again.
  void close() { closing_ = ends_in_order_ = true; }
  // Whether everything sent has left this process and its system.
  [[nodiscard]] bool is_flushed() const;

 private:
  static constexpr std::size_t slots = 64;
  static constexpr std::size_t max_incoming = 2 * StreamCount::max_streams;

  [[nodiscard]] std::size_t index_of(std::size_t slot) const {
    return static_cast<std::size_t>(peer_) * slots + slot;
  }
  bool read_incoming();
  bool read_outgoing(Time now);
  bool write(Time now);
  void open_streams(Time now);
  void open_stream(std::size_t slot, Time now);
  [[nodiscard]] Source source_of(std::size_t slot) const;
  void leave_silent_streams(Time now);
  void watch_room(std::size_t slot);
  void wait_for_resources(const Status& cause, Time now);
  void drop(std::size_t slot, const Status& cause, Time now, bool is_refused = false);
  void drop_incoming(std::size_t slot);
  void drop_unproved(Time now);
  [[nodiscard]] int open_count() const;

  const int peer_;
  const std::vector<std::string> addresses_;
  const Context& context_;
  OutgoingMessages outgoing_;
  IncomingMessages incoming_;
  StreamCount count_;
  std::uint64_t own_messages_ = 0;      // to itself
  std::uint64_t delivered_before_ = 0;  // over streams that are closed

  std::array<std::unique_ptr<OutgoingStream>, StreamCount::max_streams> out_;
  std::array<std::unique_ptr<IncomingStream>, max_incoming> in_;
  std::array<Time, StreamCount::max_streams> opened_{};
  std::array<Time, max_incoming> admitted_{};

  bool ended_message_ = false;  // its receipts are due
  bool closing_ = false;
  bool ends_in_order_ = false;
  std::optional<Time> unreachable_since_;
  Status obstacle_;                  // the first since then
  std::optional<Time> lacks_since_;  // resources to open a stream
  Time next_attempt_{};
  Time next_look_{};  // for silent streams
  Time next_question_{};
  bool is_watching_ = false;  // nothing else may announce that the next look is due
  int attempts_ = 0;
  Status failure_;
};

}  // namespace rueda
