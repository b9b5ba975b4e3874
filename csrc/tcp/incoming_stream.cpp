#include "tcp/incoming_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "transport/socket.h"

namespace rueda {

namespace {

// Limited so that the receiver can post its next receive before more arrives than it expects.
constexpr std::size_t max_read_at_once = 512 << 10;
constexpr std::size_t receipt_after_bytes = 64 << 10;
constexpr std::size_t receipt_after_chunks = 64;

}  // namespace

IncomingStream::IncomingStream(const Key& key, int rank, int peer, SocketLink link)
    : opening_(key, peer, rank), link_(std::move(link)) {
  link_.enqueue(frame_of(FrameKind::message, opening_.challenge()));
  // This few bytes always fit; reading will detect a broken connection.
  if (const Status sent = link_.write(); !sent.ok()) log(LogLevel::debug, sent.to_string());
}

void IncomingStream::mark_ready(std::uint32_t events) {
  if ((events & ~EPOLLOUT) != 0) readable_ = true;
  // An end that came before earlier data was read is not reported again.
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ending_ = true;
}

IncomingStream::Progress IncomingStream::read(IncomingMessages& messages) {
  Progress progress;
  if (!open_) read_opening(progress);
  if (std::exchange(is_early_, false)) {  // it is posted now, or must be kept
    take_inline(messages, progress);
    take_headers(messages, progress);
    if (!progress.status.ok()) return progress;
  }
  for (std::size_t total = 0; open_ && readable_ && !is_early_ && total < max_read_at_once;) {
    total += read_once(messages, progress);
    if (!progress.status.ok()) return progress;
  }
  if (open_ && !is_readable()) wake_for(message_ ? header_.bytes - arrived_ : 1);
  return progress;
}

// Reads no further than the answer: chunks follow it.
void IncomingStream::read_opening(Progress& progress) {
  constexpr std::size_t whole = frame_header_bytes + StreamOpening::answer_bytes;
  while (readable_ && link_.inbox().size() < whole) {
    const std::size_t before = link_.inbox().size();
    const Status status = link_.read(whole - before);
    if (link_.inbox().size() < whole && !status.ok()) {
      progress.status = status;
      return;
    }
    if (link_.inbox().size() < whole) readable_ = false;
  }
  const auto frame = link_.next_frame(StreamOpening::answer_bytes);
  if (frame && !frame.value()) return;
  const auto confirmation = frame ? opening_.confirm(frame.value()->payload) : std::nullopt;
  if (!confirmation) {
    progress.status = Status(ErrorCode::transport, "a stream without a valid proof");
    return;
  }
  link_.enqueue(frame_of(FrameKind::message, *confirmation));
  progress.status = link_.write();
  progress.moved = true;
  open_ = true;
}

// Sets parts_ to where the rest of the arriving chunk goes: if nobody wants it, into the inbox,
// which is empty then.
void IncomingStream::place_rest() {
  parts_.clear();
  if (!message_) return;
  const std::size_t left = header_.bytes - arrived_;
  IncomingMessages::place(*message_, header_.offset + arrived_, left, parts_);
  if (parts_.empty()) parts_.emplace_back(inbox_.data(), std::min(left, inbox_.size()));
}

// Returns the number of bytes read.
std::size_t IncomingStream::read_once(IncomingMessages& messages, Progress& progress) {
  place_rest();
  vectors_.clear();
  std::size_t length = 0;
  for (const MutableBytes& part : parts_) {
    if (vectors_.size() + 1 == UIO_MAXIOV) break;
    vectors_.push_back({part.data(), part.size()});
    length += part.size();
  }
  const std::size_t of_chunk = length;
  // Reads the next header along with it; between chunks, short chunks as well.
  if (!message_ || arrived_ + of_chunk == header_.bytes) {
    std::byte* const end = inbox_.data() + inbox_end_;
    const std::size_t along = message_ ? sizeof(ChunkHeader) : inbox_.size() - inbox_end_;
    const bool is_free = parts_.empty() || parts_.front().data() != inbox_.data();
    if (is_free) {
      vectors_.push_back({end, along});
      length += along;
    }
  }
  msghdr header{};
  header.msg_iov = vectors_.data();
  header.msg_iovlen = vectors_.size();
  const ssize_t got = ::recvmsg(fd(), &header, 0);
  if (got < 0 && errno == EINTR) return 0;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    readable_ = false;
    return 0;
  }
  if (got <= 0) {
    progress.status = got == 0 ? Status(ErrorCode::transport, "the peer has closed the connection")
                               : system_error("connection broken", errno);
    return 0;
  }
  const auto count = static_cast<std::size_t>(got);
  readable_ = ending_ || count == length;
  progress.moved = true;
  arrived_ += std::min(count, of_chunk);
  inbox_end_ += count - std::min(count, of_chunk);
  if (message_ && arrived_ == header_.bytes) end_chunk(messages, progress);
  take_headers(messages, progress);
  return count;
}

// A partial message is useless, so there is no point in waking for a little of a long chunk. Asking
// for more would fix the connection's window.
void IncomingStream::wake_for(std::size_t bytes) {
  constexpr std::size_t worth_a_call = 16 << 10;
  constexpr std::size_t most = 64 << 10;
  bytes = bytes < worth_a_call ? 1 : std::min(bytes, most);
  if (std::exchange(wakes_for_, bytes) == bytes) return;
  const int least = static_cast<int>(bytes);
  ::setsockopt(fd(), SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

// Processes the inbox: headers, and chunks that were read along with them.
void IncomingStream::take_headers(IncomingMessages& messages, Progress& progress) {
  while (progress.status.ok() && !message_ && inbox_end_ - inbox_begin_ >= sizeof(ChunkHeader)) {
    std::memcpy(&header_, inbox_.data() + inbox_begin_, sizeof header_);
    inbox_begin_ += sizeof header_;
    if (is_question(header_)) {
      asked_ = true;
      continue;
    }
    auto message = messages.begin(header_);
    if (!message) {
      progress.status = message.status();
      progress.is_peers_fault = true;
      return;
    }
    message_ = std::move(message).value();
    arrived_ = 0;
    is_early_ = comes_early();
    if (is_early_) break;
    take_inline(messages, progress);
  }
  std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_end_ - inbox_begin_);
  inbox_end_ -= std::exchange(inbox_begin_, 0);
}

// Whoever posts receives has had no turn since the last chunk arrived, so the one for this chunk
// may be about to come. Otherwise its bytes would have to be kept in memory of their own and
// copied.
bool IncomingStream::comes_early() const {
  return header_.bytes > inbox_.size() && !IncomingMessages::has_place(*message_);
}

void IncomingStream::take_inline(IncomingMessages& messages, Progress& progress) {
  const std::size_t here = std::min<std::size_t>(inbox_end_ - inbox_begin_, header_.bytes);
  parts_.clear();
  IncomingMessages::place(*message_, header_.offset, here, parts_);
  const std::byte* source = inbox_.data() + inbox_begin_;
  for (const MutableBytes& part : parts_) {
    std::memcpy(part.data(), source, part.size());
    source += part.size();
  }
  inbox_begin_ += here;
  arrived_ = here;
  if (arrived_ == header_.bytes) end_chunk(messages, progress);
}

void IncomingStream::end_chunk(IncomingMessages& messages, Progress& progress) {
  const bool ends = messages.add(message_, header_.offset, header_.bytes);
  if (ends && header_.length > OutgoingMessages::max_copied_bytes) progress.ended_message = true;
  message_.reset();
  ++received_;
  ++unreceipted_chunks_;
  unreceipted_bytes_ += header_.bytes;
}

bool IncomingStream::owes_much() const {
  return unreceipted_chunks_ >= receipt_after_chunks || unreceipted_bytes_ >= receipt_after_bytes;
}

void IncomingStream::send_receipt() {
  if (!open_ || link_.wants_to_write()) return;
  // A receipt that is not accepted is left for the next; a partial one would garble all later ones.
  const ssize_t sent = ::send(fd(), &received_, sizeof received_, MSG_NOSIGNAL);
  if (sent < 0) return;
  asked_ = false;
  unreceipted_chunks_ = 0;
  unreceipted_bytes_ = 0;
  if (static_cast<std::size_t>(sent) == sizeof received_) return;
  const auto rest = std::as_bytes(std::span(&received_, 1)).subspan(static_cast<std::size_t>(sent));
  link_.enqueue({rest.begin(), rest.end()});
}

}  // namespace rueda
