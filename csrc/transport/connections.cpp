#include "transport/connections.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"

namespace rueda {

Connections::Connections(Settings settings, Handlers handlers)
    : name_(std::move(settings.name)),
      handshake_(settings.protocol, std::move(settings.key), settings.rank,
                 static_cast<int>(settings.addresses.size())),
      handlers_(std::move(handlers)),
      context_{handshake_, watched_,
               [this](int peer, std::span<const std::byte> payload) {
                 if (is_running()) handlers_.on_message(peer, payload);
               },
               [this](int peer) {
                 suspects_.push_back(peer);
                 wake();
               }},
      pending_(name_, handshake_, std::move(settings.listeners),
               {[this](int peer) { return at(peer).expects_incoming(); },
                [this](int peer, SocketLink link) { at(peer).admit(std::move(link)); }}) {
  peers_.reserve(settings.addresses.size());
  for (int peer = 0; peer < size(); ++peer) {
    peers_.emplace_back(peer, std::move(settings.addresses[static_cast<std::size_t>(peer)]),
                        context_);
  }
}

Status Connections::open() {
  wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_ || !watched_.open() || !pending_.open()) {
    return system_error("cannot make the " + name_, errno);
  }
  watched_.add(wake_.get(), EPOLLIN, Watched::wake);
  watched_.add(pending_.wait_fd(), EPOLLIN, Watched::pending);
  return {};
}

bool Connections::has_left(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].has_left();
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
  return settle_suspicions() || moved;
}

void Connections::handle_event(const EpollSet<Watched>::Event& event) {
  switch (event.source) {
    case Watched::wake: return handle_wake();
    case Watched::pending: return pending_.progress();
    case Watched::outgoing:
    case Watched::incoming: return peers_[event.index].progress(event.source, event.events);
  }
}

void Connections::handle_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  if (is_running()) handlers_.on_wake();
}

// What becomes a suspicion meanwhile has its turn next time.
bool Connections::settle_suspicions() {
  const auto suspects = std::exchange(suspects_, {});
  for (const int peer : suspects) {
    pending_.catch_up();  // the peer's good-bye may be on a connection that is not let in yet
    const auto cause = at(peer).settle();
    if (!cause || !is_running()) continue;
    handlers_.on_loss(peer, Status(ErrorCode::peer_lost, cause->to_string(), peer,
                                   {.reason = cause->details().reason}));
  }
  return !suspects.empty();
}

std::vector<int> Connections::unflushed() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    if (!peers_[static_cast<std::size_t>(peer)].is_flushed()) ranks.push_back(peer);
  }
  return ranks;
}

std::vector<int> Connections::close(Time deadline) {
  if (!is_running()) return {};
  phase_ = Phase::closing;
  pending_.catch_up();
  settle_suspicions();
  for (PeerConnection& peer : peers_) peer.say_good_bye();
  // Reads on, so that two ranks that close while much is queued between them do not wait for each
  // other.
  while (!unflushed().empty() && Clock::now() < deadline) {
    if (!progress()) wait_readable(wait_fd(), deadline);
  }
  auto left = unflushed();
  for (PeerConnection& peer : peers_) peer.close();
  pending_.close();
  watched_.remove(pending_.wait_fd());
  watched_.remove(wake_.get());
  phase_ = Phase::closed;
  return left;
}

void Connections::close_after_fork() {
  for (PeerConnection& peer : peers_) peer.close_after_fork();
  pending_.close_after_fork();
  wake_.reset();
  watched_.close();
  phase_ = Phase::closed;
}

}  // namespace rueda
