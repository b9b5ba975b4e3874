// A TCP connection opened by a peer, over which this rank receives its chunks.
//
// Reads a chunk's bytes straight to their destination, along with the header of the next chunk, so
// that a chunk costs one system call. Not thread-safe. Watched edge-triggered: see mark_ready().
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "tcp/incoming_messages.h"
#include "tcp/outgoing_messages.h"
#include "tcp/stream_opening.h"
#include "transport/socket_link.h"

namespace rueda {

class IncomingStream {
 public:
  // `link`: from `peer`, which has been welcomed. `key` must outlive this.
  IncomingStream(const Key& key, int rank, int peer, SocketLink link);

  [[nodiscard]] int fd() const { return link_.fd(); }
  // Whether the peer has proved that it opened the connection just now.
  [[nodiscard]] bool is_open() const { return open_; }
  // Events from epoll: EPOLLIN, EPOLLOUT, ...
  void mark_ready(std::uint32_t events);

  struct Progress {
    bool moved = false;
    bool ended_message = false;   // a long one: its sender waits for the receipt
    Status status;                // an error if the connection is broken
    bool is_peers_fault = false;  // not the connection's: the data is not part of any message
  };
  // Reads what is available, up to a limit, so that other streams get their turn.
  [[nodiscard]] Progress read(IncomingMessages& messages);
  // Whether more is known to be available.
  [[nodiscard]] bool is_readable() const { return readable_ || is_early_; }
  // Whether the last read() has left something that does not wait for its receive to be posted.
  [[nodiscard]] bool is_unfinished() const { return readable_ && !is_early_; }

  // Whether enough has arrived since the last receipt that one is due.
  [[nodiscard]] bool owes_much() const;
  [[nodiscard]] bool owes() const { return unreceipted_chunks_ > 0; }
  // Whether the peer has asked for a receipt.
  [[nodiscard]] bool is_asked() const { return asked_; }
  // Tells the peer what has arrived.
  void send_receipt();

 private:
  void read_opening(Progress& progress);
  [[nodiscard]] std::size_t read_once(IncomingMessages& messages, Progress& progress);
  void take_headers(IncomingMessages& messages, Progress& progress);
  void take_inline(IncomingMessages& messages, Progress& progress);
  [[nodiscard]] bool comes_early() const;
  void end_chunk(IncomingMessages& messages, Progress& progress);
  void place_rest();
  void wake_for(std::size_t bytes);

  StreamOpening opening_;
  SocketLink link_;
  bool open_ = false;
  bool readable_ = true;
  bool ending_ = false;

  ChunkHeader header_;                        // of the arriving chunk
  IncomingMessages::MessagePointer message_;  // null between chunks
  std::size_t arrived_ = 0;                   // bytes of the chunk
  bool is_early_ = false;                     // the chunk's bytes are left for the next read()
  std::size_t wakes_for_ = 1;                 // epoll waits for this many bytes
  std::array<std::byte, 4096> inbox_;         // read ahead
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
  std::vector<MutableBytes> parts_;
  std::vector<iovec> vectors_;

  Receipt received_ = 0;  // chunks, ever
  bool asked_ = false;
  std::size_t unreceipted_chunks_ = 0;
  std::size_t unreceipted_bytes_ = 0;
};

}  // namespace rueda
