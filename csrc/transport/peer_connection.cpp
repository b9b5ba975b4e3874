#include "transport/peer_connection.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "transport/socket.h"

namespace rueda {

namespace {

// Time for other activity in the process to give descriptors back.
constexpr Duration shortage_timeout = std::chrono::seconds(10);
constexpr Duration between_calls = std::chrono::milliseconds(100);
constexpr Duration close_timeout = std::chrono::milliseconds(100);
constexpr Duration usual_pause = std::chrono::milliseconds(100);

Status process_has_ended() {
  return Status(ErrorCode::transport, "its process has ended");
}

}  // namespace

PeerConnection::PeerConnection(PeerPath path, std::string address, std::string own_host,
                               const Context& context)
    : path_(path),
      address_(std::move(address)),
      own_host_(std::move(own_host)),
      is_on_other_host_(address_.starts_with("tcp:")),
      user_(::geteuid()),
      context_(context) {}

PeerConnection::State PeerConnection::state() const {
  State state;
  state.has_left = has_left_;
  state.was_connected = welcomed_ || was_admitted_;
  state.has_incoming = incoming_.is_open();
  state.is_sending = outgoing_.is_open();
  state.is_suspect = suspicion_.has_value();
  state.is_given_up = suspicion_ && !may_call_again_;
  // A welcome that arrives after the socket is closed resets the connection, and the kernel drops
  // what it has not sent yet.
  const bool awaits_welcome = !welcomed_ && !suspicion_;
  const bool has_nothing_to_send = has_left_ || (!outgoing_.is_open() && !lacks_since_);
  state.is_flushed = has_nothing_to_send || (!outgoing_.wants_to_write() && !awaits_welcome);
  state.queued_bytes = outgoing_.queued_bytes();
  return state;
}

void PeerConnection::forget(SocketLink& link, Ending how) {
  if (!link.is_open()) return;
  context_.watched.remove(link.fd());
  how == Ending::reset ? link.reset() : link.drop();
}

void PeerConnection::open(std::uint64_t call, std::uint64_t sent) {
  if (has_left_ || is_leaving_ || outgoing_.is_open() || suspicion_ || lacks_since_) return;
  if (has_ended_) return give_up(process_has_ended());
  outgoing_ = {};
  call_ = call;
  outgoing_.keep_sent();
  outgoing_.enqueue(context_.handshake.hello_to(path_.peer, call_));
  if (sent > 0) {
    outgoing_.enqueue(frame_of(FrameKind::resume, std::as_bytes(std::span(&sent, 1))));
  }
  connect();
}

void PeerConnection::connect() {
  Attempt attempt = attempt_to_connect(address_, {own_host_, 0}, user_);
  if (attempt.lacks_resources) return wait_for_resources(attempt.status);
  lacks_since_.reset();
  ++attempts_;
  if (!attempt.status.ok()) return suspect(outgoing_, attempt.status);
  outgoing_.restart(std::move(attempt.fd), is_on_other_host_);
  set_network_timeout(outgoing_.fd(), context_.network_timeout);  // without effect on AF_UNIX
  context_.watched.add(outgoing_.fd(), EPOLLIN | EPOLLOUT, Watched::outgoing, path_.index());
  if (!outgoing_.is_connecting()) write();
}

void PeerConnection::wait_for_resources(const Status& cause) {
  if (!lacks_since_) lacks_since_ = Clock::now();
  shortage_ = cause;
  context_.on_pause(path_, usual_pause);
}

Status PeerConnection::look_again() {
  if (decides_at_ && !has_left_) context_.on_suspicion(path_);
  if (!lacks_since_ || suspicion_ || has_left_) return {};
  connect();
  if (!lacks_since_ || Clock::now() - *lacks_since_ < shortage_timeout) return {};
  return Status(ErrorCode::transport,
                str("no connection to rank ", path_.peer, " could be opened for ",
                    to_seconds(shortage_timeout), " s"))
      .because(shortage_);
}

// With the same hello and everything sent after it: the peer has not looked at any of it.
void PeerConnection::call_again() {
  if (first_failure_.ok()) first_failure_ = *suspicion_;
  suspicion_.reset();
  may_call_again_ = false;
  forget(outgoing_);
  connect();
}

Status PeerConnection::finish_opening(Time deadline) {
  const auto is_waiting = [&] { return lacks_since_ || outgoing_.is_connecting(); };
  while (!has_left_ && (suspicion_ ? may_call_again_ : is_waiting())) {
    if (suspicion_) {
      call_again();
    } else if (lacks_since_ && Clock::now() < deadline) {
      std::this_thread::sleep_for(between_calls);
      connect();
    } else if (lacks_since_) {
      return Status(ErrorCode::initialization, str("cannot open a connection to rank ", path_.peer))
          .because(shortage_);
    } else if (wait_writable(outgoing_.fd(), deadline)) {
      write();
    } else if (Clock::now() >= deadline) {
      return Status(
          ErrorCode::initialization,
          str("rank ", path_.peer, " did not answer at ", address_, " before the deadline"),
          path_.peer);
    }
  }
  if (!suspicion_) return {};
  return Status(ErrorCode::initialization, str("cannot reach rank ", path_.peer), path_.peer)
      .because(*suspicion_);
}

void PeerConnection::send(std::span<const std::byte> payload) {
  if (has_left_ || is_leaving_) return;
  if (suspicion_ && !may_call_again_) return;
  const bool idle = !suspicion_ && !lacks_since_ && !outgoing_.wants_to_write();
  outgoing_.enqueue(frame_of(FrameKind::message, payload));
  if (idle) write();
}

void PeerConnection::write() {
  if (const Status status = outgoing_.write(); !status.ok()) return suspect(outgoing_, status);
  context_.watched.change(outgoing_.fd(), outgoing_.wants_to_write() ? EPOLLIN | EPOLLOUT : EPOLLIN,
                          Watched::outgoing, path_.index());
}

void PeerConnection::admit(SocketLink incoming) {
  incoming_ = std::move(incoming);
  was_admitted_ = true;
  set_network_timeout(incoming_.fd(), context_.network_timeout);
  context_.watched.add(incoming_.fd(), EPOLLIN, Watched::incoming, path_.index());
  read(incoming_);
  if (has_ended_ && !has_left_) give_up(process_has_ended());
}

void PeerConnection::progress(Watched source, std::uint32_t events) {
  if (source == Watched::incoming) return read(incoming_);
  // A refused connection is readable as well; writing finds out why. One that is still connecting
  // may report only an error, from a message that arrived while the kernel was at it.
  if ((events & (EPOLLOUT | EPOLLERR)) != 0 && outgoing_.wants_to_write()) write();
  if ((events & ~EPOLLOUT) != 0 && !outgoing_.is_connecting()) read(outgoing_);
}

void PeerConnection::read(SocketLink& link, std::size_t bound) {
  if (!link.is_open()) return;
  const bool is_outgoing = &link == &outgoing_;
  Status status = link.read(bound);
  while (!has_left_) {
    const auto frame = link.next_frame(is_outgoing ? max_pending_frame_bytes : max_frame_bytes);
    if (!frame.ok()) status = frame.status();
    if (!frame.ok() || !frame.value()) break;
    if (const Status handled = handle_frame(*frame.value(), is_outgoing); !handled.ok()) {
      status = handled;
      break;
    }
  }
  if (has_left_) {
    forget(outgoing_);
    forget(incoming_);
  } else if (!status.ok() && is_outgoing && is_leaving_) {
    forget(outgoing_);  // the peer has nothing more to say there
  } else if (!status.ok()) {
    suspect(link, status);
  }
}

Status PeerConnection::handle_frame(const Frame& frame, bool is_outgoing) {
  if (is_outgoing && !welcomed_) return handle_first_frame(frame);
  if (frame.kind == FrameKind::good_bye) {
    const bool more_to_come = is_outgoing && !frame.payload.empty();
    (more_to_come ? is_leaving_ : has_left_) = true;
  } else if (is_outgoing) {
    return Status(ErrorCode::transport, "an unexpected message on an outgoing connection");
  } else if (frame.kind == FrameKind::message) {
    context_.on_message(path_, frame.payload);
  } else if (std::uint64_t count = 0;
             frame.kind == FrameKind::resume && frame.payload.size() == sizeof count) {
    std::memcpy(&count, frame.payload.data(), sizeof count);
    return context_.on_resume(path_, count);
  } else {
    return Status(ErrorCode::transport, "an unexpected frame");
  }
  return {};
}

// For whatever answers at the peer's address: only a proof shows that it is the peer.
Status PeerConnection::handle_first_frame(const Frame& frame) {
  if (frame.kind == FrameKind::welcome &&
      context_.handshake.is_welcome_of(path_.peer, frame.payload, call_)) {
    welcomed_ = true;
    first_failure_ = {};
    outgoing_.forget_sent();
  } else if (frame.kind == FrameKind::good_bye &&
             context_.handshake.is_good_bye_of(path_.peer, frame.payload)) {
    has_left_ = true;
  } else {
    return Status(ErrorCode::transport,
                  "the process that answers there is not a rank of this world");
  }
  return {};
}

void PeerConnection::suspect(const SocketLink& link, const Status& cause) {
  // A connection that ends before it was welcomed may have been rejected in a crowd.
  constexpr int max_attempts = 3;
  if (has_left_) return;
  const bool may_call_again = &link == &outgoing_ && !welcomed_ && attempts_ < max_attempts;
  may_call_again_ = may_call_again && (!suspicion_ || may_call_again_);
  if (decides_at_) context_.on_suspicion(path_);
  if (suspicion_) return;
  suspicion_ = cause;
  context_.on_suspicion(path_);
}

void PeerConnection::give_up(const Status& cause) {
  may_call_again_ = false;
  if (has_left_ || suspicion_) return;
  suspicion_ = cause;
  context_.on_suspicion(path_);
}

void PeerConnection::drop(Ending how) {
  forget(outgoing_, how);
  forget(incoming_, how);
  has_left_ = true;
}

void PeerConnection::renew() {
  drop(Ending::reset);
  outgoing_ = {};
  incoming_ = {};
  attempts_ = 0;
  lacks_since_.reset();
  first_failure_ = {};
  welcomed_ = false;
  was_admitted_ = false;
  suspicion_.reset();
  decides_at_.reset();
  may_call_again_ = false;
  is_leaving_ = false;
  has_left_ = false;
}

// What the peer sent before it died is delivered first.
void PeerConnection::note_end() {
  has_ended_ = true;
  const bool is_used = outgoing_.is_open() || incoming_.is_open() || lacks_since_;
  if (!has_left_ && is_used) give_up(process_has_ended());
}

void PeerConnection::catch_up() {
  constexpr auto everything = std::numeric_limits<std::size_t>::max();
  read(incoming_, everything);
  if (!has_left_ && !outgoing_.is_connecting()) read(outgoing_, everything);
}

std::optional<Status> PeerConnection::settle() {
  if (!suspicion_) return {};  // finish_opening() has called again
  catch_up();
  if (has_left_) return {};
  if (may_call_again_ && !welcomed_) {
    call_again();
    return {};
  }
  if (awaits_close()) return {};
  const Status& cause = first_failure_.ok() ? *suspicion_ : first_failure_;
  const ErrorReason reason = reason_of(cause);
  drop(Ending::reset);
  return Status(cause.code(), cause.to_string(), -1, {.reason = reason});
}

// On this host the kernel knows whether somebody listens.
ErrorReason PeerConnection::reason_of(const Status& cause) const {
  if (has_certainly_ended()) return ErrorReason::ended;
  if (cause.details().reason == ErrorReason::unreachable) return ErrorReason::unreachable;
  return is_on_other_host_ ? ErrorReason::refused : ErrorReason::ended;
}

// When a process ends, one connection may be reset because of unread data, and the other is closed
// a moment later.
bool PeerConnection::awaits_close() {
  if (!is_on_other_host_ || has_certainly_ended() || !incoming_.is_open() ||
      incoming_.has_ended()) {
    return false;
  }
  const Time now = Clock::now();
  if (decides_at_ && now >= *decides_at_) return false;
  if (!decides_at_) {
    decides_at_ = now + close_timeout;
    forget(outgoing_, Ending::reset);
    context_.on_pause(path_, usual_pause);
  }
  return true;
}

// A connection that was not admitted may have been closed by a living peer, in a crowd.
bool PeerConnection::has_certainly_ended() const {
  return has_ended_ || incoming_.was_closed() || (welcomed_ && outgoing_.was_closed());
}

void PeerConnection::say_good_bye() {
  if (has_left_ || (!outgoing_.is_open() && !lacks_since_)) return;
  outgoing_.enqueue(frame_of(FrameKind::good_bye, {}));
  if (outgoing_.is_open() && !outgoing_.is_connecting()) write();
}

void PeerConnection::close(bool more_to_come) {
  if (incoming_.is_open()) {
    const std::byte more{1};
    incoming_.end_with(frame_of(FrameKind::good_bye, std::span(&more, more_to_come ? 1 : 0)));
    forget(incoming_);
  }
  if (outgoing_.is_open()) {
    // Closing a socket with unread data resets the connection, and what was sent last may be lost.
    if (const Status status = outgoing_.read(); !status.ok()) {
      log(LogLevel::trace, status.to_string());
    }
    outgoing_.end();
    forget(outgoing_);
  }
}

void PeerConnection::close_after_fork() {
  outgoing_.drop();
  incoming_.drop();
}

}  // namespace rueda
