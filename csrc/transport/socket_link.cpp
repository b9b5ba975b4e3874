#include "transport/socket_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr std::size_t header_bytes = frame_header_bytes;

}  // namespace

std::vector<std::byte> frame_of(FrameKind kind, std::span<const std::byte> payload) {
  std::vector<std::byte> frame(header_bytes + payload.size());
  const std::array<std::uint32_t, 2> header{static_cast<std::uint32_t>(payload.size()),
                                            static_cast<std::uint32_t>(kind)};
  std::memcpy(frame.data(), header.data(), header_bytes);
  if (!payload.empty()) std::memcpy(frame.data() + header_bytes, payload.data(), payload.size());
  return frame;
}

// The kernel reports EPIPE for a reset that came after the close.
Status SocketLink::ended(int error) {
  if (end_ == End::none) end_ = error == 0 || error == EPIPE ? End::closed : End::broken;
  if (error == EPIPE || error == ECONNRESET || error == 0) {
    return Status(ErrorCode::transport, "connection closed without good-bye");
  }
  return connection_error("connection broken", error);
}

Status SocketLink::write() {
  if (connecting_) {
    if (Status status = finish_connecting(fd()); !status.ok()) return status;
    connecting_ = false;
  }
  while (sent_ < queue_.size()) {
    const auto& front = queue_[sent_];
    const ssize_t sent =
        ::send(fd(), front.data() + written_, front.size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) return ended(errno);
    written_ += static_cast<std::size_t>(sent);
    if (written_ < front.size()) continue;
    written_ = 0;
    if (keeps_sent_) {
      ++sent_;
    } else {
      queued_bytes_ -= front.size();
      queue_.pop_front();
    }
  }
  return {};
}

void SocketLink::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};  // without effect on AF_UNIX
  ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  drop();
}

void SocketLink::end() {
  ::shutdown(fd(), SHUT_WR);
}

void SocketLink::end_with(std::vector<std::byte> last) {
  enqueue(std::move(last));
  if (const Status status = write(); !status.ok()) log(LogLevel::debug, status.to_string());
  end();
}

void SocketLink::forget_sent() {
  for (; sent_ > 0; --sent_) {
    queued_bytes_ -= queue_.front().size();
    queue_.pop_front();
  }
  keeps_sent_ = false;
}

void SocketLink::restart(UniqueFd fd, bool connecting) {
  fd_ = std::move(fd);
  connecting_ = connecting;
  end_ = End::none;
  sent_ = 0;
  written_ = 0;
  inbox_.clear();
  consumed_ = 0;
}

Status SocketLink::read(std::size_t bound) {
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(consumed_));
  consumed_ = 0;
  std::array<std::byte, 65536> piece;
  for (std::size_t total = 0; total < bound;) {
    const ssize_t got = ::recv(fd(), piece.data(), std::min(piece.size(), bound - total), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (got <= 0) return ended(got < 0 ? errno : 0);
    inbox_.insert(inbox_.end(), piece.begin(), piece.begin() + got);
    total += static_cast<std::size_t>(got);
  }
  return {};
}

std::span<const std::byte> SocketLink::inbox() const {
  return std::span(inbox_).subspan(consumed_);
}

Expected<std::optional<Frame>> SocketLink::next_frame(std::size_t limit) {
  const auto waiting = inbox();
  if (waiting.size() < header_bytes) return std::optional<Frame>();
  std::array<std::uint32_t, 2> header{};
  std::memcpy(header.data(), waiting.data(), header_bytes);
  const auto [length, kind] = header;
  if (length > limit || kind < 1 || kind > 4) {
    return Status(ErrorCode::transport, "received something that is not a frame");
  }
  if (waiting.size() < header_bytes + length) return std::optional<Frame>();
  consume(header_bytes + length);
  return std::optional(Frame{static_cast<FrameKind>(kind), waiting.subspan(header_bytes, length)});
}

}  // namespace rueda
