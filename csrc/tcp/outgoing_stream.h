// A TCP connection opened by this rank, over which it sends chunks to one peer.
//
// Takes chunks only as the system accepts them, so that waiting chunks go to whichever stream is
// free. Not thread-safe. Watched edge-triggered: see mark_ready().
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "tcp/outgoing_messages.h"
#include "tcp/stream_opening.h"
#include "tcp/stream_silence.h"
#include "transport/handshake.h"
#include "transport/socket_link.h"

namespace rueda {

class OutgoingStream {
 public:
  // `fd` is connected or connecting. `key` must outlive this.
  OutgoingStream(const Handshake& handshake, const Key& key, int peer, UniqueFd fd);

  [[nodiscard]] int fd() const { return link_.fd(); }
  // Whether the peer has admitted it, so that it takes chunks.
  [[nodiscard]] bool is_open() const { return phase_ == Phase::open; }
  // Whether nobody listened at the peer's address.
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  // Makes the system accept nothing while it holds this many unsent bytes.
  void limit_unsent(int bytes);
  // Events from epoll: EPOLLIN, EPOLLOUT, ...
  void mark_ready(std::uint32_t events);

  // Whether it needs to be told when the system accepts more. Check after each turn, and report
  // with watch_room() what was done about it.
  [[nodiscard]] bool awaits_room() const { return !is_open() || partial_ > 0 || !writable_; }
  // Whether a chunk has been written in part.
  [[nodiscard]] bool has_begun() const { return partial_ > 0; }
  [[nodiscard]] bool is_room_watched() const { return room_watched_; }
  void watch_room(bool watched);

  // Continues the opening, or reads receipts. An error if the connection is broken or the peer does
  // not belong to this world.
  [[nodiscard]] Status read(OutgoingMessages& messages);
  // Takes chunks of up to `chunk_bytes` (0: none) and writes them, as long as there are any and the
  // system accepts them. Always finishes a chunk that it has begun. Returns how many bytes the
  // system has accepted.
  [[nodiscard]] Expected<std::size_t> write(OutgoingMessages& messages, std::size_t chunk_bytes,
                                            Time now);

  // For one of several streams: limits what it takes to what it carries in a moment, judged by what
  // it has carried, since chunks in the network's queues can no longer go over another stream. Call
  // before each write(); `alone`: no limit.
  void pace(Time now, bool alone);

  // The shortest recent one, sampled from time to time.
  [[nodiscard]] Duration round_trip(Time now);

  // Total bytes of chunks that have arrived at the peer.
  [[nodiscard]] std::uint64_t delivered() const { return delivered_; }
  // Whether the network has been silent since something was in flight, for `timeout` and for as
  // long as an answer may take.
  [[nodiscard]] StreamSilence silence(Duration timeout, Time now) const;
  // Whether chunks have been sent for which no receipt has arrived.
  [[nodiscard]] bool awaits_receipt() const { return written_ > 0; }
  // Asks for a receipt if nothing else is being written, so that silence() shows whether the peer
  // can still send one. An error if the connection is broken.
  [[nodiscard]] Status ask_for_receipt(Time now);
  // Whether the peer's system has received everything that was written.
  [[nodiscard]] bool is_flushed() const;
  // The stream has broken: gives back what has not been acknowledged.
  void give_back(OutgoingMessages& messages);

 private:
  enum class Phase : std::uint8_t { welcome, challenge, open };

  Status read_opening();
  Status handle_opening(const Frame& frame);
  Status read_receipts(OutgoingMessages& messages);
  Status take_receipts(OutgoingMessages& messages, std::span<const std::byte> bytes);
  std::size_t gather(OutgoingMessages& messages, std::size_t chunk_bytes);
  void advance(OutgoingMessages& messages, std::size_t count);
  void note_writing(Time now);

  const Handshake& handshake_;
  const int peer_;
  StreamOpening opening_;
  SocketLink link_;
  Phase phase_ = Phase::welcome;
  bool confirmed_ = false;
  bool is_refused_ = false;
  bool readable_ = true;
  bool writable_ = false;
  bool ending_ = false;
  bool room_watched_ = true;

  std::deque<OutgoingMessages::Chunk> sent_;  // not acknowledged
  std::size_t written_ = 0;                   // how many of these, from the front
  std::size_t partial_ = 0;                   // bytes of the next one, including the header
  Receipt acknowledged_ = 0;                  // chunks, ever
  std::uint64_t delivered_ = 0;
  std::size_t under_way_ = 0;  // bytes of chunks taken and not acknowledged
  std::size_t budget_ = std::numeric_limits<std::size_t>::max();  // limit for under_way_
  double rate_ = 0;                                               // bytes per second
  Time paced_{};                                                  // when the rate was last computed
  std::uint64_t delivered_then_ = 0;
  Duration round_trip_{};
  Time round_trip_seen_{};
  Time last_written_{};
  Time first_due_{};  // start of the time without a pause in which something is in flight
  std::vector<std::byte> receipts_;  // incomplete
  std::vector<ChunkHeader> headers_;
  std::vector<ConstBytes> parts_;
  std::vector<iovec> vectors_;
};

}  // namespace rueda
