// Frames over one non-blocking stream socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

enum class FrameKind : std::uint32_t { message = 1, good_bye = 2, welcome = 3, resume = 4 };

struct Frame {
  FrameKind kind = FrameKind::message;
  std::span<const std::byte> payload;  // valid until the link is used again
};

// A longer frame means that the other side speaks another protocol.
inline constexpr std::size_t max_frame_bytes = std::size_t{1} << 30;
// The limit before the other side has shown that it belongs to the job.
inline constexpr std::size_t max_pending_frame_bytes = 4096;
inline constexpr std::size_t frame_header_bytes = 8;

// The wire format: length (32 bits), kind (32 bits), payload.
[[nodiscard]] std::vector<std::byte> frame_of(FrameKind kind, std::span<const std::byte> payload);

class SocketLink {
 public:
  SocketLink() = default;
  SocketLink(UniqueFd fd, bool connecting) : fd_(std::move(fd)), connecting_(connecting) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool is_open() const { return static_cast<bool>(fd_); }
  [[nodiscard]] bool is_connecting() const { return connecting_; }
  void drop() { fd_.reset(); }

  void enqueue(std::vector<std::byte> bytes) {
    queued_bytes_ += bytes.size();
    queue_.push_back(std::move(bytes));
  }
  // The size of the queue: what is yet to be sent, and what is kept.
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  // Whether there is reason to wait for the socket to become writable.
  [[nodiscard]] bool wants_to_write() const { return connecting_ || sent_ < queue_.size(); }
  // Keeps what is sent until forget_sent(), so that restart() can send it again, from the
  // beginning, over another connection.
  void keep_sent() { keeps_sent_ = true; }
  void forget_sent();
  void restart(UniqueFd fd, bool connecting);
  // Whether the other side closed the connection after everything that it sent: its process has
  // ended, or meant to close.
  [[nodiscard]] bool was_closed() const { return end_ == End::closed; }
  [[nodiscard]] bool has_ended() const { return end_ != End::none; }
  // Sends what fits; an error if the connection is broken. Finishes connecting, if called when the
  // socket is writable.
  Status write();
  // Closes the connection so that the other side does not mistake it for the end of this process.
  void reset();
  // Sends nothing more: the other side reads the end of the stream after what was sent.
  void end();
  // The same, with `last` after everything queued, as far as it fits.
  void end_with(std::vector<std::byte> last);
  // Reads what is available, up to `bound` bytes, so that other links have their turn. An error at
  // the end of the stream or if the connection is broken; what was read before it is kept.
  Status read(std::size_t bound = 1 << 20);

  // What has been read and not consumed.
  [[nodiscard]] std::span<const std::byte> inbox() const;
  void consume(std::size_t count) { consumed_ += count; }
  // Takes the next whole frame. An error if the bytes cannot be a frame, or if its payload is
  // longer than `limit`.
  [[nodiscard]] Expected<std::optional<Frame>> next_frame(std::size_t limit = max_frame_bytes);

 private:
  enum class End : std::uint8_t { none, closed, broken };

  // Records how the connection ended: after a reset, later errors look like a close.
  Status ended(int error);

  UniqueFd fd_;
  bool connecting_ = false;
  End end_ = End::none;
  std::deque<std::vector<std::byte>> queue_;
  std::size_t sent_ = 0;     // entries of the queue that have been sent, and are kept
  std::size_t written_ = 0;  // bytes sent of the next entry
  std::size_t queued_bytes_ = 0;
  bool keeps_sent_ = false;
  std::vector<std::byte> inbox_;
  std::size_t consumed_ = 0;
};

}  // namespace rueda
