#include "transport/connections.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"

namespace rueda {

namespace {

// Pauses between checks of a process that is ending.
constexpr Duration first_look_pause = std::chrono::microseconds(50);
constexpr Duration last_look_pause = std::chrono::milliseconds(500);
// How often close() looks whether it has waited long enough for one of several paths.
constexpr Duration flush_pause = std::chrono::milliseconds(100);

// Of zero: stops it.
void set_timer(const UniqueFd& timer, Duration pause) {
  itimerspec next{};
  next.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(pause).count();
  next.it_value.tv_nsec = std::chrono::nanoseconds(pause % std::chrono::seconds(1)).count();
  ::timerfd_settime(timer.get(), 0, &next, nullptr);
}

}  // namespace

Connections::Connections(Settings settings, Handlers handlers)
    : name_(std::move(settings.name)),
      handshake_(settings.protocol, std::move(settings.key), settings.rank,
                 static_cast<int>(settings.addresses.size())),
      handlers_(std::move(handlers)),
      context_{handshake_,
               watched_,
               settings.network_timeout,
               settings.reopen_pause,
               [this](PeerPath from, std::span<const std::byte> payload) {
                 const bool is_next = at(from.peer).is_next(from.number);
                 if (is_next && is_running()) handlers_.on_message(from.peer, payload);
               },
               [this](PeerPath from, std::uint64_t count) {
                 return at(from.peer).resume(from.number, count);
               },
               [this](PeerPath path) {
                 suspects_.push_back(path);
                 wake();
               },
               [this](PeerPath path, Duration length) { pause(path, length); }},
      pending_(name_, handshake_, std::move(settings.listeners),
               {[this](int peer, std::uint64_t call) { return at(peer).expects(call); },
                [this](int peer, std::uint64_t call, SocketLink link) {
                  at(peer).admit(call, std::move(link));
                }}) {
  peers_.reserve(settings.addresses.size());
  for (int peer = 0; peer < size(); ++peer) {
    peers_.emplace_back(peer, settings.addresses[static_cast<std::size_t>(peer)],
                        settings.own_hosts, context_);
  }
}

Status Connections::open() {
  wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  // Created now: later there may be no descriptor for it, either.
  next_look_again_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!wake_ || !next_look_again_ || !watched_.open() || !pending_.open()) {
    return system_error("cannot make the " + name_, errno);
  }
  watched_.add(wake_.get(), EPOLLIN, Watched::wake);
  watched_.add(next_look_again_.get(), EPOLLIN, Watched::pause);
  watched_.add(pending_.wait_fd(), EPOLLIN, Watched::pending);
  return {};
}

bool Connections::has_left(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].has_left();
}

bool Connections::was_connected(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].was_connected();
}

Status Connections::connect(std::span<const int> peers, Time deadline) {
  for (const int peer : peers) {
    if (peer != rank()) at(peer).open();
  }
  for (const int peer : peers) {
    if (Status opened = at(peer).finish_opening(deadline); !opened.ok()) return opened;
  }
  return {};
}

void Connections::send(int peer, std::span<const std::byte> payload) {
  if (is_running()) at(peer).send(payload);
}

void Connections::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

bool Connections::progress() {
  if (phase_ == Phase::closed) return false;
  bool moved = false;
  watched_.for_each_ready([&](const auto& event) {
    handle_event(event);
    moved = true;
  });
  if (std::exchange(look_is_due_, false)) look_at_ending();
  return settle_suspicions() || moved;
}

void Connections::handle_event(const EpollSet<Watched>::Event& event) {
  switch (event.source) {
    case Watched::wake: return handle_wake();
    case Watched::pending: return pending_.progress();
    case Watched::life_line:
      watched_.remove(ends_.at(static_cast<int>(event.index)).fd);
      ending_.push_back(static_cast<int>(event.index));
      look_pause_ = first_look_pause;
      look_is_due_ = true;
      return;
    case Watched::ending: look_is_due_ = true; return;
    case Watched::pause: return look_again();
    case Watched::outgoing:
    case Watched::incoming: {
      const PeerPath path = PeerPath::at(event.index);
      return at(path.peer).progress(path.number, event.source, event.events);
    }
  }
}

void Connections::handle_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  if (is_running()) handlers_.on_wake();
}

void Connections::watch_end(int peer, PeerEnd end) {
  if (!is_running() || peer == rank() || end.fd < 0) return;
  if (!next_look_) {
    next_look_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!next_look_) return;  // then this rank only notices when the kernel closes the sockets
    watched_.add(next_look_.get(), EPOLLIN, Watched::ending);
  }
  watched_.add(end.fd, EPOLLIN, Watched::life_line, static_cast<std::size_t>(peer));
  ends_[peer] = std::move(end);
}

void Connections::look_again() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(next_look_again_.get(), &count, sizeof count);
  const Time now = Clock::now();
  for (const Paused& paused : std::exchange(paused_, {})) {
    if (paused.until > now) {
      paused_.push_back(paused);
      continue;
    }
    const Status stuck = at(paused.path.peer).look_again(paused.path.number);
    if (stuck.ok() || !is_running() || std::exchange(is_stuck_, true)) continue;
    handlers_.on_loss(rank(), Status(ErrorCode::peer_lost, stuck.to_string(), rank()));
  }
  set_next_look_again();
}

void Connections::pause(PeerPath path, Duration length) {
  paused_.push_back({path, Clock::now() + length});
  set_next_look_again();
}

void Connections::set_next_look_again() {
  if (paused_.empty()) return;
  const auto earlier = [](const Paused& left, const Paused& right) {
    return left.until < right.until;
  };
  const Time next = std::min_element(paused_.begin(), paused_.end(), earlier)->until;
  set_timer(next_look_again_, std::max<Duration>(next - Clock::now(), Duration(1)));
}

// A process that is ending needs some microseconds until nothing of it runs, and longer if it waits
// for a processor.
void Connections::look_at_ending() {
  std::erase_if(ending_, [this](int peer) {
    if (!at(peer).has_left() && !ends_.at(peer).has_ended()) return false;
    ends_.erase(peer);
    at(peer).note_end();
    return true;
  });
  set_timer(next_look_, ending_.empty() ? Duration() : look_pause_);
  look_pause_ = std::min(2 * look_pause_, last_look_pause);
}

// Suspicions that arise meanwhile are settled next time.
bool Connections::settle_suspicions() {
  const auto suspects = std::exchange(suspects_, {});
  for (const PeerPath& path : suspects) {
    pending_.catch_up();  // the peer's good-bye may be on a connection that is not admitted yet
    const auto cause = at(path.peer).settle(path.number);
    if (!cause || !is_running()) continue;
    handlers_.on_loss(path.peer, Status(ErrorCode::peer_lost, cause->to_string(), path.peer,
                                        {.reason = cause->details().reason}));
  }
  return !suspects.empty();
}

std::vector<int> Connections::unflushed() {
  std::vector<int> ranks;
  const Time now = Clock::now();
  for (int peer = 0; peer < size(); ++peer) {
    if (!at(peer).is_flushed(now)) ranks.push_back(peer);
  }
  return ranks;
}

std::vector<int> Connections::close(Time deadline) {
  if (!is_running()) return {};
  phase_ = Phase::closing;
  pending_.catch_up();
  settle_suspicions();
  for (PeerPaths& peer : peers_) peer.say_good_bye();
  // Keeps reading, so that two ranks that close while much is queued between them do not wait for
  // each other.
  while (!unflushed().empty() && Clock::now() < deadline) {
    if (!progress()) wait_readable(wait_fd(), std::min(deadline, Clock::now() + flush_pause));
  }
  auto left = unflushed();
  for (PeerPaths& peer : peers_) peer.close();
  pending_.close();
  watched_.remove(pending_.wait_fd());
  watched_.remove(wake_.get());
  for (const auto& [peer, end] : ends_) watched_.remove(end.fd);
  if (next_look_) watched_.remove(next_look_.get());
  next_look_.reset();
  watched_.remove(next_look_again_.get());
  next_look_again_.reset();
  ends_.clear();
  ending_.clear();
  phase_ = Phase::closed;
  return left;
}

void Connections::close_after_fork() {
  for (PeerPaths& peer : peers_) peer.close_after_fork();
  pending_.close_after_fork();
  wake_.reset();
  next_look_.reset();
  next_look_again_.reset();
  watched_.close();
  phase_ = Phase::closed;
}

}  // namespace rueda
