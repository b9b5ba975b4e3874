#include "transport/pending_handshakes.h"

#include <fcntl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/limited_log.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

LimitedLog& rejections() {
  static LimitedLog log(LogLevel::warning);
  return log;
}

UniqueFd spare_descriptor() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

PendingHandshakes::PendingHandshakes(std::string name, const Handshake& handshake,
                                     std::vector<Listener> listeners, Owner owner, Duration timeout)
    : name_(std::move(name)),
      handshake_(handshake),
      listeners_(std::move(listeners)),
      owner_(std::move(owner)),
      timeout_(timeout),
      spare_(spare_descriptor()) {}

bool PendingHandshakes::open() {
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_ || !watched_.open()) return false;
  watched_.add(timer_.get(), EPOLLIN, Source::timer);
  for (const Listener& listener : listeners_) {
    watched_.add(listener.fd.get(), EPOLLIN, Source::listener);
  }
  return true;
}

void PendingHandshakes::progress() {
  watched_.for_each_ready([this](const auto& event) {
    switch (event.source) {
      case Source::listener: return accept_all();
      case Source::pending: return read_hello(pending_[event.index]);
      case Source::timer: return reject_overdue();
    }
  });
}

void PendingHandshakes::catch_up() {
  accept_all();
  for (Pending& pending : pending_) read_hello(pending);
}

// A bounded number at once: connections that still wait make the descriptor readable again.
void PendingHandshakes::accept_all() {
  for (const Listener& listener : listeners_) {
    for (int count = 0; count < max_accepted_at_once; ++count) {
      Accepted next = accept_from(listener.fd.get());
      if (next.lacks_descriptors) make_room(listener);
      if (!next.fd) break;
      add(std::move(next.fd));
    }
  }
}

// Out of descriptors: a connection left waiting would wake this rank again and again, and its peer
// would wait as long. The oldest is closed. If there is none, the spare descriptor accepts the
// connection and closes it, so that the peer learns that it is not let in.
void PendingHandshakes::make_room(const Listener& listener) {
  rejections().write(str(name_, ": no file descriptor is left for a connection (ulimit -n)"));
  if (Pending* first = oldest()) {
    read_hello(*first);
    if (first->link.is_open()) reject(*first, "had to make room for another");
    return;
  }
  spare_.reset();
  accept_from(listener.fd.get()).fd.reset();
  spare_ = spare_descriptor();
}

void PendingHandshakes::add(UniqueFd fd) {
  Pending* place = nullptr;
  for (Pending& pending : pending_) {
    read_hello(pending);
    if (!pending.link.is_open()) place = &pending;
  }
  if (place == nullptr) {
    place = oldest();
    reject(*place, "said nothing while many others came");
  }
  const bool is_first = oldest() == nullptr;
  *place = Pending{SocketLink(std::move(fd), false), Clock::now()};
  watched_.add(place->link.fd(), EPOLLIN, Source::pending,
               static_cast<std::size_t>(place - pending_.data()));
  if (is_first) set_timer();
}

void PendingHandshakes::reject_overdue() {
  std::uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  const Time now = Clock::now();
  for (Pending& pending : pending_) {
    read_hello(pending);
    if (pending.link.is_open() && now - pending.since >= timeout_) reject(pending, "said nothing");
  }
  set_timer();
}

// For the oldest. It may be gone when the timer expires; then another is the oldest.
void PendingHandshakes::set_timer() {
  const Pending* const first = oldest();
  if (first == nullptr) return;
  const Duration left = std::max<Duration>(first->since + timeout_ - Clock::now(), Duration(1));
  itimerspec after{};
  after.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
  after.it_value.tv_nsec = (left % std::chrono::seconds(1)).count();
  ::timerfd_settime(timer_.get(), 0, &after, nullptr);
}

// Null if there is none.
PendingHandshakes::Pending* PendingHandshakes::oldest() {
  Pending* first = nullptr;
  for (Pending& pending : pending_) {
    if (!pending.link.is_open()) continue;
    if (first == nullptr || pending.since < first->since) first = &pending;
  }
  return first;
}

// Reads only the hello: what follows is read once the sender is known.
void PendingHandshakes::read_hello(Pending& pending) {
  SocketLink& link = pending.link;
  if (!link.is_open()) return;
  const Status status = link.read(Handshake::hello_bytes - link.inbox().size());
  const HelloCheck check = handshake_.check_hello(link.inbox());
  if (check.is_rejected()) return reject(pending, check.reason());
  if (check.outcome == HelloCheck::Outcome::valid) {
    return welcome(pending, check.peer, check.call);
  }
  if (!status.ok()) reject(pending, "ended before it said who it is");
}

void PendingHandshakes::welcome(Pending& pending, int peer, std::uint64_t call) {
  if (!owner_.expects(peer, call)) return reject(pending, str("claims to be rank ", peer));
  watched_.remove(pending.link.fd());
  SocketLink link = std::exchange(pending.link, {});
  link.consume(Handshake::hello_bytes);
  link.enqueue(frame_of(FrameKind::welcome, handshake_.welcome_to(peer, call)));
  // So few bytes fit; reading finds out whether the connection is broken.
  if (const Status sent = link.write(); !sent.ok()) log(LogLevel::debug, sent.to_string());
  owner_.admit(peer, call, std::move(link));
}

void PendingHandshakes::reject(Pending& pending, std::string_view why) {
  rejections().write(str(name_, ": rejected a connection that ", why));
  forget(pending);
}

void PendingHandshakes::forget(Pending& pending) {
  watched_.remove(pending.link.fd());
  pending.link.drop();
}

void PendingHandshakes::close() {
  for (Pending& pending : pending_) {
    if (!pending.link.is_open()) continue;
    pending.link.end_with(frame_of(FrameKind::good_bye, handshake_.good_bye()));
    forget(pending);
  }
  watched_.remove(timer_.get());
  timer_.reset();
  for (Listener& listener : listeners_) {
    watched_.remove(listener.fd.get());
    listener.fd.reset();
  }
}

void PendingHandshakes::close_after_fork() {
  for (Pending& pending : pending_) pending.link.drop();
  for (Listener& listener : listeners_) listener.fd.reset();
  timer_.reset();
  watched_.close();
}

}  // namespace rueda
