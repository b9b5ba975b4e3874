#include "tcp/outgoing_stream.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "transport/socket.h"

namespace rueda {

namespace {

// Given to the system at once. If this stream turns out slow, no other stream can take that much.
constexpr std::size_t max_gathered_bytes = 256 << 10;
constexpr std::size_t max_gathered_chunks = 16;
// At the rate and the round trip.
constexpr Duration between_looks = std::chrono::milliseconds(20);

Status is_none_of_ours() {
  return Status(ErrorCode::transport, "the process that answers there is not a rank of this world");
}

}  // namespace

OutgoingStream::OutgoingStream(const Handshake& handshake, const Key& key, int peer, UniqueFd fd)
    : handshake_(handshake),
      peer_(peer),
      opening_(key, handshake.rank(), peer),
      link_(std::move(fd), true) {
  link_.enqueue(handshake_.hello_to(peer));
}

void OutgoingStream::limit_unsent(int bytes) {
  ::setsockopt(fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

void OutgoingStream::mark_ready(std::uint32_t events) {
  if ((events & ~EPOLLOUT) != 0) readable_ = true;
  if ((events & EPOLLOUT) != 0) writable_ = true;
  // An end that came before earlier data was read is not reported again.
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ending_ = true;
}

// If nobody reports room, find out by trying.
void OutgoingStream::watch_room(bool watched) {
  room_watched_ = watched;
  if (!watched) writable_ = true;
}

Status OutgoingStream::read(OutgoingMessages& messages) {
  if (link_.wants_to_write() && writable_) {
    const bool was_connecting = link_.is_connecting();
    if (const Status written = link_.write(); !written.ok()) {
      is_refused_ = was_connecting && written.details().reason != ErrorReason::unreachable;
      return written;
    }
  }
  if (!readable_ || link_.is_connecting()) return {};
  if (confirmed_) return read_receipts(messages);
  if (const Status opened = read_opening(); !opened.ok() || !confirmed_) return opened;
  const auto rest = link_.inbox();
  return take_receipts(messages, rest);
}

Status OutgoingStream::read_opening() {
  const Status status = link_.read();
  readable_ = false;
  while (!confirmed_) {
    const auto frame = link_.next_frame(max_pending_frame_bytes);
    if (!frame) return frame.status();
    if (!frame.value()) return status;
    if (const Status handled = handle_opening(*frame.value()); !handled.ok()) return handled;
  }
  return status;
}

Status OutgoingStream::handle_opening(const Frame& frame) {
  switch (phase_) {
    case Phase::welcome:
      if (frame.kind != FrameKind::welcome || !handshake_.is_welcome_of(peer_, frame.payload)) {
        return is_none_of_ours();
      }
      phase_ = Phase::challenge;
      return {};
    case Phase::challenge:
      if (frame.payload.size() != StreamOpening::challenge_bytes) return is_none_of_ours();
      link_.enqueue(frame_of(FrameKind::message, opening_.answer(frame.payload)));
      phase_ = Phase::open;
      return link_.write();
    case Phase::open:
      confirmed_ = opening_.is_confirmation(frame.payload);
      return confirmed_ ? Status() : is_none_of_ours();
  }
  return {};
}

Status OutgoingStream::read_receipts(OutgoingMessages& messages) {
  std::array<std::byte, 4096> bytes;
  while (readable_) {
    const ssize_t got = ::recv(fd(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      readable_ = false;
      break;
    }
    if (got == 0) return Status(ErrorCode::transport, "the peer has closed the connection");
    if (got < 0) return system_error("connection broken", errno);
    readable_ = ending_ || static_cast<std::size_t>(got) == bytes.size();
    const auto part = std::span<const std::byte>(bytes).first(static_cast<std::size_t>(got));
    if (const Status taken = take_receipts(messages, part); !taken.ok()) return taken;
  }
  return {};
}

Status OutgoingStream::take_receipts(OutgoingMessages& messages, std::span<const std::byte> bytes) {
  receipts_.insert(receipts_.end(), bytes.begin(), bytes.end());
  const std::size_t whole = receipts_.size() / sizeof(Receipt) * sizeof(Receipt);
  if (whole == 0) return {};
  Receipt arrived = 0;  // the last one counts
  std::memcpy(&arrived, receipts_.data() + whole - sizeof arrived, sizeof arrived);
  receipts_.erase(receipts_.begin(), receipts_.begin() + static_cast<std::ptrdiff_t>(whole));
  if (arrived < acknowledged_ || arrived - acknowledged_ > written_) return is_none_of_ours();
  for (; acknowledged_ < arrived; ++acknowledged_) {
    const OutgoingMessages::Chunk chunk = std::move(sent_.front());
    sent_.pop_front();
    --written_;
    delivered_ += chunk.bytes;
    under_way_ -= chunk.bytes;
    messages.acknowledge(chunk);
  }
  return {};
}

Expected<std::size_t> OutgoingStream::write(OutgoingMessages& messages, std::size_t chunk_bytes,
                                            Time now) {
  std::size_t total = 0;
  if (link_.wants_to_write()) return total;  // the answer has not been accepted yet
  const auto takes_more = [&] {
    return chunk_bytes > 0 && under_way_ < budget_ && messages.has_waiting();
  };
  if (writable_ && (partial_ > 0 || takes_more())) note_writing(now);
  while (writable_ && (partial_ > 0 || takes_more())) {
    const std::size_t length = gather(messages, chunk_bytes);
    msghdr message{};
    message.msg_iov = vectors_.data();
    message.msg_iovlen = vectors_.size();
    const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return system_error("connection broken", errno);
    }
    const std::size_t count = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    if (count < length && !(sent < 0 && errno == EINTR)) writable_ = false;
    advance(messages, count);
    total += count;
  }
  return total;
}

// Gathers the rest of the partly written chunk, and more. Returns the number of bytes.
std::size_t OutgoingStream::gather(OutgoingMessages& messages, std::size_t chunk_bytes) {
  parts_.clear();
  headers_.clear();
  headers_.reserve(max_gathered_chunks);
  std::size_t gathered = 0;
  const auto add = [&](const OutgoingMessages::Chunk& chunk, std::size_t skipped) {
    headers_.push_back(chunk.header());
    const auto header = std::as_bytes(std::span(&headers_.back(), 1));
    if (skipped < header.size()) parts_.push_back(header.subspan(skipped));
    chunk.append_to(parts_, skipped < header.size() ? 0 : skipped - header.size());
    gathered += header.size() + chunk.bytes - skipped;
  };
  if (partial_ > 0) add(sent_[written_], partial_);
  while (chunk_bytes > 0 && under_way_ < budget_ && gathered < max_gathered_bytes &&
         headers_.size() < max_gathered_chunks) {
    auto chunk = messages.take(chunk_bytes);
    if (!chunk) break;
    add(*chunk, 0);
    under_way_ += chunk->bytes;
    sent_.push_back(std::move(*chunk));
  }
  vectors_.clear();
  std::size_t length = 0;
  for (const ConstBytes& part : parts_) {
    if (vectors_.size() == UIO_MAXIOV) break;
    vectors_.push_back({const_cast<std::byte*>(part.data()), part.size()});
    length += part.size();
  }
  return length;
}

// Chunks of which nothing was accepted go back, for whichever stream is free.
void OutgoingStream::advance(OutgoingMessages& messages, std::size_t count) {
  count += partial_;
  partial_ = 0;
  while (written_ < sent_.size()) {
    OutgoingMessages::Chunk& chunk = sent_[written_];
    const std::size_t length = sizeof(ChunkHeader) + chunk.bytes;
    if (count < length) break;
    count -= length;
    messages.mark_written(chunk);
    ++written_;
  }
  partial_ = count;
  const std::size_t kept = written_ + (partial_ > 0 ? 1 : 0);
  while (sent_.size() > kept) {
    under_way_ -= sent_.back().bytes;
    messages.give_back(std::move(sent_.back()));
    sent_.pop_back();
  }
}

Duration OutgoingStream::round_trip(Time now) {
  if (now - round_trip_seen_ < between_looks) return round_trip_;
  round_trip_seen_ = now;
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &length);
  const bool is_known = info.tcpi_min_rtt != std::numeric_limits<std::uint32_t>::max();
  if (is_known) round_trip_ = std::chrono::microseconds(info.tcpi_min_rtt);
  return round_trip_;
}

void OutgoingStream::pace(Time now, bool alone) {
  constexpr std::size_t least = 128 << 10;
  constexpr Duration moment = std::chrono::milliseconds(25);
  constexpr double forgetting = 0.8;  // if it had little to carry
  if (alone) {
    budget_ = std::numeric_limits<std::size_t>::max();
    return;
  }
  const bool was_alone = budget_ == std::numeric_limits<std::size_t>::max();
  if (under_way_ > 0) {
    if (now - paced_ < between_looks) return;
    const double rate =
        static_cast<double>(delivered_ - delivered_then_) / to_seconds(now - paced_);
    rate_ = std::max(rate, forgetting * rate_);
  }
  paced_ = now;
  delivered_then_ = delivered_;
  if (under_way_ == 0 && !was_alone) return;
  const double reach = to_seconds(moment + 2 * round_trip(now));
  budget_ = std::max(least, static_cast<std::size_t>(rate_ * reach));
}

// Call before writing. Checks rarely: a pause shorter than a moment hardly matters.
void OutgoingStream::note_writing(Time now) {
  constexpr Duration moment = std::chrono::milliseconds(25);
  if (now - last_written_ < moment) {
    last_written_ = now;
    return;
  }
  last_written_ = now;
  int unacknowledged = 0;
  const bool known = ::ioctl(fd(), SIOCOUTQ, &unacknowledged) == 0;
  if (!known || unacknowledged == 0) first_due_ = now;
}

StreamSilence OutgoingStream::silence(Duration timeout, Time now) const {
  tcp_info info{};
  socklen_t length = sizeof info;
  const bool known = ::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  using std::chrono::microseconds;
  // Where the interface of this host is down, nothing leaves, and so nothing is unacknowledged: the
  // system probes instead. A receiver without room answers each probe before the next.
  const bool probes_in_vain = info.tcpi_probes > 1;
  return silence_of({.awaits_any = known && (info.tcpi_unacked > 0 || probes_in_vain),
                     .since_last = std::chrono::milliseconds(info.tcpi_last_ack_recv),
                     .since_first_due = now - first_due_,
                     .round_trip = microseconds(info.tcpi_rtt),
                     // It doubles with every retransmission in vain.
                     .resending_after = microseconds(info.tcpi_rto >> info.tcpi_backoff)},
                    timeout);
}

Status OutgoingStream::ask_for_receipt(Time now) {
  if (link_.wants_to_write() || partial_ > 0) return {};
  note_writing(now);
  const ChunkHeader question;
  const ssize_t sent = ::send(fd(), &question, sizeof question, MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(sizeof question)) return {};
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  // A partial question would garble everything after it.
  return system_error("connection broken", sent < 0 ? errno : EPIPE);
}

bool OutgoingStream::is_flushed() const {
  int unsent = 0;
  return partial_ == 0 && (::ioctl(fd(), SIOCOUTQ, &unsent) != 0 || unsent == 0);
}

void OutgoingStream::give_back(OutgoingMessages& messages) {
  while (!sent_.empty()) {
    messages.give_back(std::move(sent_.back()));
    sent_.pop_back();
  }
  written_ = 0;
  partial_ = 0;
  under_way_ = 0;
}

}  // namespace rueda
