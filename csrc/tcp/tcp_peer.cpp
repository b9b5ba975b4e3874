#include "tcp/tcp_peer.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "transport/matching.h"
#include "transport/socket.h"
#include "transport/span_cursor.h"
#include "transport/strangers.h"

namespace rueda {

namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t incoming_events = EPOLLIN | EPOLLRDHUP | EPOLLET;
constexpr std::uint32_t outgoing_events = incoming_events | EPOLLOUT;
// Limit on what the system accepts ahead: what it has accepted stays on that stream, however slow.
constexpr int unsent_bytes = 256 << 10;
constexpr int unsent_bytes_of_several = 64 << 10;
constexpr std::size_t chunk_bytes = 256 << 10;
constexpr std::size_t chunk_bytes_of_several = 64 << 10;
// Bytes whose arrival takes far longer than waking up, also where links are fast.
constexpr std::size_t much_bytes = 32 << 10;
// How long a stream that is not the only one may be silent, or take to open.
constexpr Duration silence_timeout = 150ms;
constexpr Duration opening_timeout = 500ms;
constexpr Duration pause_between_questions = 1s;
constexpr Duration pause_in_shortage = 100ms;
constexpr Duration first_pause = 10ms;
constexpr int max_doublings = 6;
// Descriptors left for uses more urgent than another stream to a peer.
constexpr int spared_descriptors = 64;

// New descriptors get the lowest free number.
bool descriptors_run_short() {
  rlimit limit{};
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!next || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return limit.rlim_cur < static_cast<rlim_t>(next.get() + spared_descriptors);
}

}  // namespace

TcpPeer::TcpPeer(int peer, std::vector<std::string> addresses, const Context& context)
    : peer_(peer),
      addresses_(std::move(addresses)),
      context_(context),
      outgoing_(peer),
      incoming_(peer),
      count_(static_cast<int>(std::max(addresses_.size(), context.own_hosts.size()))) {}

Ticket TcpPeer::send(Tag tag, std::span<const ConstBytes> spans, std::int32_t priority) {
  if (!failure_.ok()) return finished_ticket(peer_, failure_);
  Ticket ticket = outgoing_.send(tag, spans, priority);
  write(Clock::now());
  return ticket;
}

Ticket TcpPeer::send_to_itself(Tag tag, std::span<const ConstBytes> spans) {
  if (!failure_.ok()) return finished_ticket(peer_, failure_);
  SpanCursor<const std::byte> source(spans);
  const std::size_t length = source.remaining();
  const auto message = incoming_.begin({.message = ++own_messages_, .length = length, .tag = tag});
  if (!message) return finished_ticket(peer_, message.status());
  std::vector<MutableBytes> parts;
  IncomingMessages::place(**message, 0, length, parts);
  for (const MutableBytes& part : parts) copy_from(source, part);
  incoming_.add(*message, 0, length);
  return finished_ticket(peer_, {});
}

Ticket TcpPeer::recv(Tag tag, std::span<const MutableBytes> spans) {
  return incoming_.recv(tag, spans);
}

// --- Streams

bool TcpPeer::expects_stream() const {
  return failure_.ok() && std::any_of(in_.begin(), in_.end(), [](const auto& stream) {
           return !stream || !stream->is_open();
         });
}

void TcpPeer::admit(SocketLink link) {
  std::size_t slot = 0;
  // A free slot, or else the oldest stream that has proved nothing.
  const auto comes_before = [this](std::size_t left, std::size_t right) {
    if (!in_[left] || !in_[right]) return !in_[left] && in_[right] != nullptr;
    if (in_[left]->is_open() || in_[right]->is_open()) return !in_[left]->is_open();
    return admitted_[left] < admitted_[right];
  };
  for (std::size_t other = 1; other < in_.size(); ++other) {
    if (comes_before(other, slot)) slot = other;
  }
  if (in_[slot]) drop_incoming(slot);
  in_[slot] = std::make_unique<IncomingStream>(context_.key, context_.handshake.rank(), peer_,
                                               std::move(link));
  admitted_[slot] = Clock::now();
  context_.watched.add(in_[slot]->fd(), incoming_events, TcpWatched::incoming, index_of(slot));
}

void TcpPeer::drop_unproved(Time now) {
  for (std::size_t slot = 0; slot < in_.size(); ++slot) {
    if (!in_[slot] || in_[slot]->is_open()) continue;
    const Time end = admitted_[slot] + handshake_timeout;
    now >= end ? drop_incoming(slot) : context_.call_at(end);
  }
}

void TcpPeer::mark_ready(TcpWatched source, std::size_t index, std::uint32_t events) {
  const std::size_t slot = index % slots;
  if (source == TcpWatched::outgoing) {
    if (out_[slot]) out_[slot]->mark_ready(events);
  } else {
    if (in_[slot]) in_[slot]->mark_ready(events);
  }
}

int TcpPeer::open_count() const {
  return static_cast<int>(std::count_if(
      out_.begin(), out_.end(), [](const auto& stream) { return stream && stream->is_open(); }));
}

void TcpPeer::open_streams(Time now) {
  if (!failure_.ok() || (closing_ && open_count() > 0)) return;
  if (now < next_attempt_) return context_.call_at(next_attempt_);
  const bool reaches = open_count() > 0;
  const auto wanted = static_cast<std::size_t>(count_.wanted());
  // One of several interfaces may be unusable, which a stream may find out immediately.
  const std::size_t first = reaches ? 0 : static_cast<std::size_t>(attempts_) % wanted;
  for (std::size_t turn = 0; turn < wanted; ++turn) {
    const std::size_t slot = (first + turn) % wanted;
    if (out_[slot]) continue;
    if (reaches && descriptors_run_short()) {
      count_.give_up_trial(now);
      next_attempt_ = now + pause_in_shortage;
      return context_.call_at(next_attempt_);
    }
    open_stream(slot, now);
    if (!reaches) return;  // one is enough to find out
  }
}

void TcpPeer::open_stream(std::size_t slot, Time now) {
  Attempt attempt = attempt_to_connect(addresses_[slot % addresses_.size()], source_of(slot));
  if (attempt.lacks_resources) return wait_for_resources(attempt.status, now);
  lacks_since_.reset();
  if (!attempt.status.ok()) return drop(slot, attempt.status, now, attempt.is_refused);
  out_[slot] = std::make_unique<OutgoingStream>(context_.handshake, context_.key, peer_,
                                                std::move(attempt.fd));
  out_[slot]->limit_unsent(count_.wanted() > 1 ? unsent_bytes_of_several : unsent_bytes);
  opened_[slot] = now;
  context_.watched.add(out_[slot]->fd(), outgoing_events, TcpWatched::outgoing, index_of(slot));
  context_.call_at(now + opening_timeout);
}

// Not the peer's fault: if this fails for good, this rank is to blame.
void TcpPeer::wait_for_resources(const Status& cause, Time now) {
  if (open_count() > 0) {  // they carry what there is
    lacks_since_.reset();
  } else if (!lacks_since_) {
    lacks_since_ = now;
    log(LogLevel::warning, "no stream to rank ", peer_, ": ", cause.to_string(), " (ulimit -n)");
  } else if (now - *lacks_since_ > reach_timeout) {
    return fail(Status(ErrorCode::transport,
                       str("rank ", context_.handshake.rank(), " could open no connection to rank ",
                           peer_, " for ", to_seconds(reach_timeout), " s"),
                       context_.handshake.rank())
                    .because(cause));
  }
  next_attempt_ = now + pause_in_shortage;
  context_.call_at(next_attempt_);
}

// Networks distribute flows over their links, and throttle them, by port: consecutive ports spread
// streams better than chance does. Interfaces are used in turn.
Source TcpPeer::source_of(std::size_t slot) const {
  constexpr int last_port = 65535;
  const auto& hosts = context_.own_hosts;
  Source source{hosts.size() > 1 ? hosts[slot % hosts.size()] : std::string()};
  const int first = slot > 0 && out_[0] ? local_port(out_[0]->fd()) : 0;
  if (first > 0) source.port = std::min(first + static_cast<int>(slot), last_port);
  return source;
}

// A cut link stays silent, and TCP waits a long time. What is in flight on a silent stream goes
// over others, if any are not silent. If everything sent has arrived but the receipt may be lost,
// asking for another receipt makes the silence visible.
void TcpPeer::leave_silent_streams(Time now) {
  if (open_count() < 2) return;
  if (now < next_look_) {
    if (is_watching_) context_.call_at(next_look_);
    return;
  }
  std::vector<std::size_t> silent;
  bool has_other = false;  // another stream that can carry the data
  bool is_busy = false;
  bool awaits_receipt = false;
  for (std::size_t slot = 0; slot < out_.size(); ++slot) {
    if (!out_[slot] || !out_[slot]->is_open()) continue;
    switch (out_[slot]->silence(silence_timeout, now)) {
      case StreamSilence::idle:
        has_other = true;
        if (!out_[slot]->awaits_receipt()) break;
        awaits_receipt = true;
        if (now < next_question_) break;
        if (const Status asked = out_[slot]->ask_for_receipt(now); !asked.ok())
          drop(slot, asked, now);
        break;
      case StreamSilence::answered: has_other = is_busy = true; break;
      case StreamSilence::silent: silent.push_back(slot);
    }
  }
  for (const std::size_t slot : silent) {
    if (has_other) drop(slot, Status(ErrorCode::transport, "silent, unlike others"), now);
  }
  if (now >= next_question_) next_question_ = now + pause_between_questions;
  is_watching_ = is_busy || awaits_receipt || !silent.empty();
  next_look_ = now + silence_timeout / 4;
  if (is_watching_) context_.call_at(next_look_);
}

// A stream has broken or could not be opened.
void TcpPeer::drop(std::size_t slot, const Status& cause, Time now, bool is_refused) {
  if (auto& stream = out_[slot]) {
    is_refused = is_refused || stream->is_refused();
    delivered_before_ += stream->delivered();
    stream->give_back(outgoing_);
    context_.watched.remove(stream->fd());
    stream.reset();
  }
  if (!failure_.ok()) return;
  log(LogLevel::debug, "a stream to rank ", peer_, ": ", cause.to_string());
  if (ends_in_order_ && is_refused && open_count() == 0) outgoing_.finish_all();
  if (!outgoing_.has_unfinished()) return;  // the next message opens another
  if (open_count() > 0) {
    unreachable_since_.reset();
  } else if (!unreachable_since_) {
    unreachable_since_ = now;
    obstacle_ = cause;
  } else if (now - *unreachable_since_ > reach_timeout) {
    // A peer whose host is gone too does not refuse connections: it does not answer.
    if (ends_in_order_) return outgoing_.finish_all();
    return fail(Status(ErrorCode::peer_lost,
                       str("rank ", context_.rank, " cannot reach rank ", peer_, " at ",
                           addresses_.front()),
                       peer_, {.reason = ErrorReason::unreachable})
                    .because(obstacle_));
  }
  // Streams that break together are one failed attempt.
  if (now >= next_attempt_) {
    next_attempt_ = now + first_pause * (1 << std::min(attempts_++, max_doublings));
  }
  context_.call_at(next_attempt_);
}

void TcpPeer::drop_incoming(std::size_t slot) {
  context_.watched.remove(in_[slot]->fd());
  in_[slot].reset();
}

// --- Progress

bool TcpPeer::progress(Time now) {
  bool moved = read_incoming();
  drop_unproved(now);
  moved = read_outgoing(now) || moved;
  leave_silent_streams(now);
  moved = write(now) || moved;
  for (auto& stream : in_) {
    if (!stream) continue;
    const bool is_due = stream->owes() && (ended_message_ || stream->owes_much());
    if (is_due || stream->is_asked()) stream->send_receipt();
  }
  ended_message_ = false;
  return moved;
}

bool TcpPeer::read_incoming() {
  bool moved = false;
  for (std::size_t slot = 0; slot < in_.size(); ++slot) {
    if (!in_[slot] || !in_[slot]->is_readable()) continue;
    const IncomingStream::Progress progress = in_[slot]->read(incoming_);
    moved = moved || progress.moved;
    ended_message_ = ended_message_ || progress.ended_message;
    if (progress.status.ok()) continue;
    if (progress.is_peers_fault) {
      fail(progress.status);
      return true;
    }
    log(LogLevel::debug, "a stream from rank ", peer_, ": ", progress.status.to_string());
    drop_incoming(slot);  // the peer resends what was in flight on it
    moved = true;
  }
  return moved;
}

bool TcpPeer::read_outgoing(Time now) {
  bool moved = false;
  for (std::size_t slot = 0; slot < out_.size(); ++slot) {
    if (!out_[slot]) continue;
    const bool was_open = out_[slot]->is_open();
    const std::uint64_t before = out_[slot]->delivered();
    Status status = out_[slot]->read(outgoing_);
    const bool is_open = out_[slot]->is_open();
    if (status.ok() && !is_open) {
      const bool is_only = open_count() == 0;
      const Time give_up = opened_[slot] + (is_only ? Duration(reach_timeout) : opening_timeout);
      if (now >= give_up) status = Status(ErrorCode::transport, "no answer");
      context_.call_at(give_up);
    }
    const bool delivered = out_[slot]->delivered() != before;
    if (delivered && before == 0) attempts_ = 0;
    moved = moved || !status.ok() || is_open != was_open || delivered;
    if (!status.ok()) {
      drop(slot, status, now);
      if (!failure_.ok()) return true;
    } else if (is_open && !was_open) {
      unreachable_since_.reset();
    }
  }
  return moved;
}

bool TcpPeer::write(Time now) {
  if (!failure_.ok()) return false;
  const auto wanted = static_cast<std::size_t>(count_.wanted());
  std::size_t written = 0;
  std::uint64_t delivered = delivered_before_;
  int in_use = 0;
  Duration round_trip{};
  for (std::size_t slot = 0; slot < out_.size(); ++slot) {
    if (!out_[slot]) continue;
    delivered += out_[slot]->delivered();
    if (!out_[slot]->is_open()) continue;
    // Streams beyond the wanted number are kept for the next trial; they serve if others are
    // missing.
    const bool takes = slot < wanted || in_use == 0;
    if (takes) {
      ++in_use;
      round_trip = std::max(round_trip, out_[slot]->round_trip(now));
    }
    out_[slot]->pace(now, wanted == 1);
    const std::size_t limit = wanted > 1 ? chunk_bytes_of_several : chunk_bytes;
    const auto count = out_[slot]->write(outgoing_, takes ? limit : 0, now);
    if (!count) {
      drop(slot, count.status(), now);
      if (!failure_.ok()) return true;
      continue;
    }
    written += count.value();
    watch_room(slot);
  }
  const int settled = count_.settled();
  count_.observe(now, delivered, in_use, outgoing_.has_waiting(), round_trip);
  if (count_.settled() != settled) {
    log(LogLevel::debug, "rank ", peer_, " is sent data over ", count_.settled(), " streams");
  }
  // May give up a trial with several streams.
  if (outgoing_.has_waiting() && in_use < count_.wanted()) open_streams(now);
  const bool several = count_.wanted() > 1;
  if (several != (wanted > 1)) {
    for (const auto& stream : out_) {
      if (stream) stream->limit_unsent(several ? unsent_bytes_of_several : unsent_bytes);
    }
  }
  if (written > 0 && in_use > 1 && !std::exchange(is_watching_, true)) {
    context_.call_at(std::max(next_look_, now + silence_timeout / 4));
  }
  return written > 0;
}

// Only while there is something to write: room on a stream is no reason to wake otherwise.
void TcpPeer::watch_room(std::size_t slot) {
  OutgoingStream& stream = *out_[slot];
  const bool is_needed = stream.awaits_room() && (outgoing_.has_waiting() || stream.has_begun());
  if (is_needed == stream.is_room_watched()) return;
  stream.watch_room(is_needed);
  context_.watched.change(stream.fd(), is_needed ? outgoing_events : incoming_events,
                          TcpWatched::outgoing, index_of(slot));
}

bool TcpPeer::has_unread() const {
  return std::any_of(in_.begin(), in_.end(),
                     [](const auto& stream) { return stream && stream->is_unfinished(); });
}

bool TcpPeer::has_work() const {
  return std::any_of(in_.begin(), in_.end(),
                     [](const auto& stream) { return stream && stream->is_readable(); });
}

bool TcpPeer::awaits_much() const {
  return incoming_.expected_bytes() >= much_bytes ||
         std::any_of(out_.begin(), out_.end(), [](const auto& stream) {
           return stream && stream->is_open() && stream->is_room_watched();
         });
}

// --- The end

void TcpPeer::fail(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  outgoing_.fail(why);
  incoming_.fail(why);
  for (auto& stream : out_) {
    if (stream) context_.watched.remove(stream->fd());
    stream.reset();
  }
  for (std::size_t slot = 0; slot < in_.size(); ++slot) {
    if (in_[slot]) drop_incoming(slot);
  }
}

bool TcpPeer::is_flushed() const {
  if (!failure_.ok()) return true;
  if (outgoing_.has_waiting()) return false;
  return std::all_of(out_.begin(), out_.end(), [](const auto& stream) {
    return !stream || !stream->is_open() || stream->is_flushed();
  });
}

}  // namespace rueda
