// A TCP connection that this rank has opened, over which it sends chunks to one peer.
//
// Takes chunks only as the system accepts them, so that what waits goes over whichever stream is
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
  // `fd` is connected, or about to be. `key` outlives this.
  OutgoingStream(const Handshake& handshake, const Key& key, int peer, UniqueFd fd);

  [[nodiscard]] int fd() const { return link_.fd(); }
  // Whether the peer has let it in, so that it takes chunks.
  [[nodiscard]] bool is_open() const { return phase_ == Phase::open; }
  // Whether nobody listened at the peer's address.
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  // The system is to accept nothing while it holds so many bytes that it has not sent.
  void limit_unsent(int bytes);
  // What epoll has told: EPOLLIN, EPOLLOUT, ...
  void mark_ready(std::uint32_t events);

  // Whether it has to be told when the system takes more. To be asked after each turn; what has
  // become of the answer is told with watch_room().
  [[nodiscard]] bool awaits_room() const { return !is_open() || partial_ > 0 || !writable_; }
  // Whether a chunk is written in part.
  [[nodiscard]] bool has_begun() const { return partial_ > 0; }
  [[nodiscard]] bool is_room_watched() const { return room_watched_; }
  void watch_room(bool watched);

  // Goes on with the opening, or takes receipts. An error where the connection is broken or the
  // peer is none of this world.
  [[nodiscard]] Status read(OutgoingMessages& messages);
  // Takes chunks of up to `chunk_bytes`, none where that is 0, and writes them, while the system
  // accepts them and there are any. What it has begun to write it ends. Returns how many bytes the
  // system has accepted.
  [[nodiscard]] Expected<std::size_t> write(OutgoingMessages& messages, std::size_t chunk_bytes,
                                            Time now);

  // One of several: takes no more than this stream carries in a moment, by how much it has carried,
  // since what it has taken waits in the network's queues where others might have carried it. Told
  // before each write(); `alone`: it takes all it can.
  void pace(Time now, bool alone);

  // The shortest of late, looked at now and then.
  [[nodiscard]] Duration round_trip(Time now);

  // Bytes of chunks that have arrived at the peer, ever.
  [[nodiscard]] std::uint64_t delivered() const { return delivered_; }
  // Whether the network has been silent for `timeout`, and as long as it may take to answer, since
  // something was under way.
  [[nodiscard]] StreamSilence silence(Duration timeout, Time now) const;
  // Whether chunks have left and no receipt tells of them yet.
  [[nodiscard]] bool awaits_receipt() const { return written_ > 0; }
  // Asks for a receipt, where nothing else is being written, so that silence() tells whether there
  // is still somebody to send one. An error where the connection is broken.
  [[nodiscard]] Status ask_for_receipt(Time now);
  // Whether everything that was written has been received by the peer's system.
  [[nodiscard]] bool is_flushed() const;
  // It has broken: what has not been acknowledged goes back.
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
  std::size_t written_ = 0;                   // of these, from the front
  std::size_t partial_ = 0;                   // bytes of the one after them, header included
  Receipt acknowledged_ = 0;                  // chunks, ever
  std::uint64_t delivered_ = 0;
  std::size_t under_way_ = 0;  // bytes of chunks that were taken and not acknowledged
  std::size_t budget_ = std::numeric_limits<std::size_t>::max();  // that under_way_ may reach
  double rate_ = 0;                                               // bytes a second
  Time paced_{};                                                  // when the rate was looked at
  std::uint64_t delivered_then_ = 0;
  Duration round_trip_{};
  Time round_trip_seen_{};
  Time last_written_{};
  Time first_due_{};                 // since when something has been under way without a pause
  std::vector<std::byte> receipts_;  // less than one
  std::vector<ChunkHeader> headers_;
  std::vector<ConstBytes> parts_;
  std::vector<iovec> vectors_;
};

}  // namespace rueda
