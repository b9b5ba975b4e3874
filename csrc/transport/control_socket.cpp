#include "transport/control_socket.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/limited_log.h"
#include "core/log.h"
#include "core/strings.h"
#include "core/unique_fd.h"
#include "core/wait_fd.h"
#include "transport/key.h"
#include "transport/socket.h"
#include "transport/socket_link.h"

namespace rueda {

namespace {

// The first bytes of every connection. The one that was called answers with a frame `welcome`,
// which holds its own proof.
struct Hello {
  std::array<char, 8> magic{'r', 'u', 'e', 'd', 'a', 'c', 't', 'l'};
  std::uint32_t version = 2;
  std::uint32_t rank = 0;
  // That the rank knows the world's key. Good for one pair of ranks and, since one connection of
  // each is let in, once: whoever hears it on the way cannot use it again.
  Digest proof{};
};
static_assert(sizeof(Hello) == 48);

// What an event of the epoll set is about.
enum class Source : std::uint32_t { listener, wake, outgoing, incoming, stranger };

constexpr std::size_t most_strangers = 64;
constexpr auto stranger_patience = std::chrono::seconds(30);
// A connection that ends before it was welcomed was perhaps turned away among many others.
constexpr int max_attempts = 3;

LimitedLog& warnings() {
  static LimitedLog log(LogLevel::warning);
  return log;
}

// A rank sends to a peer over the connection that it opened itself, and receives over the one that
// the peer opened, so no two can meet half-way. Good-byes alone go both ways: on an outgoing
// connection the peer says whether its own messages, on the other connection, are still to be
// waited for.
class SocketControl final : public ControlLane {
 public:
  SocketControl(int rank, std::vector<std::string> addresses, std::vector<Listener> listeners,
                Key key)
      : rank_(rank),
        addresses_(std::move(addresses)),
        listeners_(std::move(listeners)),
        key_(std::move(key)),
        peers_(addresses_.size()) {}

  Status open();

  std::string_view name() const override { return "socket"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void on_message(MessageHandler handler) override { handle_message_ = std::move(handler); }
  void on_loss(LossHandler handler) override { handle_loss_ = std::move(handler); }
  int wait_fd() const override { return epoll_.get(); }
  bool has_left(int peer) const override { return peers_[static_cast<std::size_t>(peer)].gone; }

  Status connect(std::span<const int> peers, Time deadline) override;
  void post(int peer, std::vector<std::byte> message) override;
  bool progress() override;
  Status close(Time deadline) override;
  void close_after_fork() override;

 private:
  enum class Phase : std::uint8_t { running, closing, closed };
  struct Peer {
    SocketLink outgoing;
    SocketLink incoming;
    std::optional<Status> suspicion;  // a connection broke; a good-bye may yet be found
    bool may_call_again = false;      // it was the outgoing one, which had not been welcomed
    bool welcomed = false;            // the peer has let the outgoing connection in
    int attempts = 0;                 // to open the outgoing one
    Status first_failure;             // of those attempts
    bool parting = false;             // has said good-bye, and its last messages are on their way
    bool gone = false;                // lost, or has said good-bye
  };
  struct Stranger {  // has connected, but not said who it is
    SocketLink link;
    Time since;
  };

  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  void watch(int operation, int fd, std::uint32_t events, Source source, std::size_t index);
  void unwatch(SocketLink& link);
  void wake();

  bool take_event(const epoll_event& event);
  bool take_own_messages();
  void deliver(int peer, std::span<const std::byte> message);

  [[nodiscard]] Digest proof(std::string_view what, int from, int to) const;
  [[nodiscard]] std::vector<std::byte> hello_to(int peer) const;
  void open_outgoing(int peer);
  void call(int peer);
  void call_again(int peer);
  void write(int peer);
  void read(int peer, SocketLink& link, std::size_t bound = 1 << 20);
  void take_good_bye(int peer, const SocketLink& link, std::span<const std::byte> payload);
  [[nodiscard]] bool take_welcome(int peer, const SocketLink& link,
                                  std::span<const std::byte> payload);

  void accept_all();
  void turn_away(const Listener& listener);
  void accept_one(UniqueFd fd);
  Stranger* oldest_stranger();
  void hear(Stranger& stranger);
  void refuse(Stranger& stranger, std::string_view why);

  void suspect(int peer, const Status& cause, bool may_call_again = false);
  void suspect_outgoing(int peer, const Status& cause);
  bool settle_suspicions();
  void settle(int peer);
  [[nodiscard]] std::vector<int> unflushed() const;
  void say_last_words();

  const int rank_;
  const std::vector<std::string> addresses_;
  std::vector<Listener> listeners_;
  const Key key_;
  UniqueFd spare_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  UniqueFd epoll_;
  UniqueFd wake_;  // readable while there is something in own_ or suspects_
  std::vector<Peer> peers_;
  std::array<Stranger, most_strangers> strangers_;
  std::deque<std::vector<std::byte>> own_;  // messages to itself
  std::vector<int> suspects_;
  Phase phase_ = Phase::running;
  MessageHandler handle_message_;
  LossHandler handle_loss_;
};

Status SocketControl::open() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_ || !wake_) return system_error("cannot make the control lane", errno);
  watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, Source::wake, 0);
  for (const Listener& listener : listeners_) {
    watch(EPOLL_CTL_ADD, listener.fd.get(), EPOLLIN, Source::listener, 0);
  }
  return {};
}

void SocketControl::watch(int operation, int fd, std::uint32_t events, Source source,
                          std::size_t index) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(source) << 32 | index;
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

void SocketControl::unwatch(SocketLink& link) {
  if (!link.is_open()) return;
  // Explicitly, because a forked child may hold a copy, which would keep the entry alive.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.fd(), nullptr);
  link.drop();
}

void SocketControl::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

// ---- Sending

Digest SocketControl::proof(std::string_view what, int from, int to) const {
  return key_.proof({what, std::to_string(from), std::to_string(to)});
}

std::vector<std::byte> SocketControl::hello_to(int peer) const {
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank_);
  hello.proof = proof("hello", rank_, peer);
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  return {bytes.begin(), bytes.end()};
}

void SocketControl::open_outgoing(int peer) {
  SocketLink& link = at(peer).outgoing;
  link = {};
  link.keep_sent();
  link.enqueue(hello_to(peer));
  call(peer);
}

void SocketControl::call(int peer) {
  const std::string& address = addresses_[static_cast<std::size_t>(peer)];
  ++at(peer).attempts;
  auto fd = start_connecting(address);
  if (!fd) return suspect_outgoing(peer, fd.status());
  SocketLink& link = at(peer).outgoing;
  link.restart(std::move(fd).value(), address.starts_with("tcp:"));
  watch(EPOLL_CTL_ADD, link.fd(), EPOLLIN | EPOLLOUT, Source::outgoing,
        static_cast<std::size_t>(peer));
  if (!link.is_connecting()) write(peer);
}

// With the same hello and all that was sent after it: the peer has not looked at any of it.
void SocketControl::call_again(int peer) {
  Peer& called = at(peer);
  if (called.first_failure.ok()) called.first_failure = *called.suspicion;
  called.suspicion.reset();
  called.may_call_again = false;
  unwatch(called.outgoing);
  call(peer);
}

void SocketControl::write(int peer) {
  SocketLink& link = at(peer).outgoing;
  if (Status status = link.write(); !status) return suspect_outgoing(peer, status);
  watch(EPOLL_CTL_MOD, link.fd(), link.wants_to_write() ? EPOLLIN | EPOLLOUT : EPOLLIN,
        Source::outgoing, static_cast<std::size_t>(peer));
}

Status SocketControl::connect(std::span<const int> peers, Time deadline) {
  for (const int peer : peers) {
    const bool is_called = at(peer).outgoing.is_open() || at(peer).suspicion;
    if (peer != rank_ && !at(peer).gone && !is_called) open_outgoing(peer);
  }
  for (const int peer : peers) {
    Peer& wanted = at(peer);
    while (wanted.suspicion ? wanted.may_call_again : wanted.outgoing.is_connecting()) {
      if (wanted.suspicion) {
        call_again(peer);
      } else if (wait_writable(wanted.outgoing.fd(), deadline)) {
        write(peer);
      } else if (Clock::now() >= deadline) {
        return Status(ErrorCode::initialization,
                      str("rank ", peer, " did not answer at ",
                          addresses_[static_cast<std::size_t>(peer)], " before the deadline"),
                      peer);
      }
    }
    if (wanted.suspicion) {
      return Status(ErrorCode::initialization, str("cannot reach rank ", peer), peer)
          .because(*wanted.suspicion);
    }
  }
  return {};
}

void SocketControl::post(int peer, std::vector<std::byte> message) {
  if (phase_ != Phase::running) return;
  if (peer == rank_) {
    own_.push_back(std::move(message));
    return wake();
  }
  Peer& receiver = at(peer);
  if (receiver.gone || receiver.parting) return;
  if (!receiver.suspicion && !receiver.outgoing.is_open()) open_outgoing(peer);
  if (receiver.suspicion && !receiver.may_call_again) return;
  const bool idle = !receiver.suspicion && !receiver.outgoing.wants_to_write();
  receiver.outgoing.enqueue(frame_of(FrameKind::message, message));
  if (idle) write(peer);
}

// ---- What has happened

bool SocketControl::progress() {
  if (phase_ == Phase::closed) return false;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) moved |= take_event(events[static_cast<std::size_t>(i)]);
  moved |= settle_suspicions();
  return moved;
}

bool SocketControl::take_event(const epoll_event& event) {
  const auto index = static_cast<std::size_t>(event.data.u64 & 0xffffffffU);
  const int peer = static_cast<int>(index);
  switch (static_cast<Source>(event.data.u64 >> 32)) {
    case Source::wake: return take_own_messages();
    case Source::listener: accept_all(); return true;
    case Source::stranger: hear(strangers_[index]); return true;
    case Source::incoming: read(peer, at(peer).incoming); return true;
    case Source::outgoing:
      // A connection that is refused is readable as well; writing finds out why.
      if ((event.events & EPOLLOUT) != 0 && at(peer).outgoing.wants_to_write()) write(peer);
      if ((event.events & ~EPOLLOUT) != 0 && !at(peer).outgoing.is_connecting()) {
        read(peer, at(peer).outgoing);
      }
      return true;
  }
  return false;
}

bool SocketControl::take_own_messages() {
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &rings, sizeof rings);
  auto own = std::exchange(own_, {});
  for (const auto& message : own) deliver(rank_, message);
  return !own.empty();
}

void SocketControl::deliver(int peer, std::span<const std::byte> message) {
  if (phase_ == Phase::running && handle_message_) handle_message_(peer, message);
}

void SocketControl::read(int peer, SocketLink& link, std::size_t bound) {
  if (!link.is_open()) return;
  Status status = link.read(bound);
  while (!at(peer).gone) {
    const bool is_outgoing = &link == &at(peer).outgoing;
    const auto frame = link.next_frame(is_outgoing ? max_pending_frame_bytes : max_frame_bytes);
    if (!frame) status = frame.status();
    if (!frame || !frame.value()) break;
    if (frame.value()->kind == FrameKind::good_bye) {
      take_good_bye(peer, link, frame.value()->payload);
    } else if (is_outgoing && !take_welcome(peer, link, frame.value()->payload)) {
      status = Status(ErrorCode::transport, "what answers there is none of this world's ranks");
      break;
    } else if (!is_outgoing) {
      deliver(peer, frame.value()->payload);
    }
  }
  if (at(peer).gone) {
    unwatch(at(peer).outgoing);
    unwatch(at(peer).incoming);
  } else if (!status && at(peer).parting && &link == &at(peer).outgoing) {
    unwatch(link);
  } else if (!status) {
    &link == &at(peer).outgoing ? suspect_outgoing(peer, status) : suspect(peer, status);
  }
}

bool SocketControl::take_welcome(int peer, const SocketLink& link,
                                 std::span<const std::byte> payload) {
  if (&link != &at(peer).outgoing) return false;
  if (!equal_in_constant_time(payload, proof("welcome", peer, rank_))) return false;
  at(peer).welcomed = true;
  at(peer).first_failure = {};
  at(peer).outgoing.forget_sent();
  return true;
}

void SocketControl::take_good_bye(int peer, const SocketLink& link,
                                  std::span<const std::byte> payload) {
  const bool more_to_come = &link == &at(peer).outgoing && !payload.empty();
  (more_to_come ? at(peer).parting : at(peer).gone) = true;
}

// ---- Newcomers

// A bounded number at once: those that still wait make the descriptor readable again.
void SocketControl::accept_all() {
  for (const Listener& listener : listeners_) {
    for (int count = 0; count < max_accepted_at_once; ++count) {
      Accepted next = accept_from(listener.fd.get());
      if (next.lacks_descriptors) turn_away(listener);
      if (!next.fd) break;
      accept_one(std::move(next.fd));
    }
  }
}

// Out of descriptors: a connection that is left waiting would wake this rank for ever, and its peer
// would wait as long. Whoever has been silent longest makes room; where nobody is, the spare one
// takes the connection, and closes it, so that the peer learns that it is not let in.
void SocketControl::turn_away(const Listener& listener) {
  warnings().write("control lane: no file descriptor is left for a connection (ulimit -n)");
  if (Stranger* oldest = oldest_stranger()) {
    hear(*oldest);
    if (oldest->link.is_open()) refuse(*oldest, "had to make room for another");
    return;
  }
  spare_.reset();
  accept_from(listener.fd.get()).fd.reset();
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Null where there is none.
SocketControl::Stranger* SocketControl::oldest_stranger() {
  Stranger* oldest = nullptr;
  for (Stranger& stranger : strangers_) {
    if (!stranger.link.is_open()) continue;
    if (oldest == nullptr || stranger.since < oldest->since) oldest = &stranger;
  }
  return oldest;
}

void SocketControl::accept_one(UniqueFd fd) {
  const Time now = Clock::now();
  Stranger* place = nullptr;
  for (Stranger& stranger : strangers_) {
    if (stranger.link.is_open()) hear(stranger);
    if (stranger.link.is_open() && now - stranger.since > stranger_patience) {
      refuse(stranger, "said nothing");
    }
    if (!stranger.link.is_open()) place = &stranger;
  }
  if (place == nullptr) {
    place = oldest_stranger();
    refuse(*place, "said nothing while many others came");
  }
  *place = Stranger{SocketLink(std::move(fd), false), now};
  watch(EPOLL_CTL_ADD, place->link.fd(), EPOLLIN, Source::stranger,
        static_cast<std::size_t>(place - strangers_.data()));
}

void SocketControl::refuse(Stranger& stranger, std::string_view why) {
  warnings().write(str("control lane: refused a connection that ", why));
  unwatch(stranger.link);
}

// Reads no more than the hello: what comes after it is read once it is known who sends it.
void SocketControl::hear(Stranger& stranger) {
  if (!stranger.link.is_open()) return;
  Hello hello;
  const Status status = stranger.link.read(sizeof hello - stranger.link.inbox().size());
  const auto inbox = stranger.link.inbox();
  const std::size_t known = std::min(inbox.size(), sizeof hello.magic);
  if (known > 0 && std::memcmp(inbox.data(), hello.magic.data(), known) != 0) {
    return refuse(stranger, "speaks another protocol");
  }
  if (inbox.size() < sizeof hello) {
    if (!status) refuse(stranger, "ended before it said who it is");
    return;
  }
  const auto version = hello.version;
  std::memcpy(&hello, inbox.data(), sizeof hello);
  const int peer = static_cast<int>(hello.rank);
  if (hello.version != version) return refuse(stranger, "is of another version of Rueda");
  const bool is_peer = peer >= 0 && peer < size() && peer != rank_;
  if (!is_peer || !equal_in_constant_time(hello.proof, proof("hello", peer, rank_))) {
    return refuse(stranger, "is not of this world");
  }
  if (at(peer).incoming.is_open() || at(peer).gone) {
    return refuse(stranger, str("claims to be rank ", peer));
  }
  stranger.link.consume(sizeof hello);
  SocketLink& link = at(peer).incoming;
  link = std::exchange(stranger.link, {});
  watch(EPOLL_CTL_MOD, link.fd(), EPOLLIN, Source::incoming, hello.rank);
  link.enqueue(frame_of(FrameKind::welcome, proof("welcome", rank_, peer)));
  // So few bytes fit; a connection that is broken is found by reading.
  if (Status sent = link.write(); !sent) log(LogLevel::debug, sent.to_string());
  read(peer, link);
}

// ---- Losses

// Only notes it down: the caller may be in the middle of a message.
void SocketControl::suspect(int peer, const Status& cause, bool may_call_again) {
  Peer& suspected = at(peer);
  if (suspected.gone) return;
  if (suspected.suspicion) {
    suspected.may_call_again = suspected.may_call_again && may_call_again;
    return;
  }
  suspected.suspicion = cause;
  suspected.may_call_again = may_call_again;
  suspects_.push_back(peer);
  wake();
}

void SocketControl::suspect_outgoing(int peer, const Status& cause) {
  suspect(peer, cause, !at(peer).welcomed && at(peer).attempts < max_attempts);
}

bool SocketControl::settle_suspicions() {
  const auto suspects = std::exchange(suspects_, {});
  for (const int peer : suspects) {
    if (at(peer).suspicion) settle(peer);  // connect() may have called again
  }
  return !suspects.empty();
}

// A broken connection is a loss unless a good-bye is still to be read, perhaps on the other
// connection. What the peer sent before it died is delivered first.
void SocketControl::settle(int peer) {
  Peer& suspected = at(peer);
  accept_all();
  for (Stranger& stranger : strangers_) hear(stranger);
  constexpr auto everything = std::numeric_limits<std::size_t>::max();
  read(peer, suspected.incoming, everything);
  if (!suspected.gone && !suspected.outgoing.is_connecting()) {
    read(peer, suspected.outgoing, everything);
  }
  if (suspected.gone) return;
  if (suspected.may_call_again && !suspected.welcomed) return call_again(peer);
  suspected.gone = true;
  unwatch(suspected.outgoing);
  unwatch(suspected.incoming);
  if (phase_ != Phase::running || !handle_loss_) return;
  const Status& cause =
      suspected.first_failure.ok() ? *suspected.suspicion : suspected.first_failure;
  handle_loss_(peer, Status(ErrorCode::peer_lost, cause.to_string(), peer));
}

// ---- The end

std::vector<int> SocketControl::unflushed() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    const Peer& receiver = peers_[static_cast<std::size_t>(peer)];
    if (!receiver.outgoing.is_open() || receiver.gone) continue;
    // A welcome that comes after the socket is closed resets the connection, and what the kernel
    // has not sent yet is lost.
    const bool is_awaited = !receiver.welcomed && !receiver.suspicion;
    if (receiver.outgoing.wants_to_write() || is_awaited) ranks.push_back(peer);
  }
  return ranks;
}

Status SocketControl::close(Time deadline) {
  if (phase_ != Phase::running) return {};
  phase_ = Phase::closing;
  accept_all();
  for (Stranger& stranger : strangers_) hear(stranger);
  settle_suspicions();
  for (int peer = 0; peer < size(); ++peer) {
    if (!at(peer).outgoing.is_open() || at(peer).gone) continue;
    at(peer).outgoing.enqueue(frame_of(FrameKind::good_bye, {}));
    if (!at(peer).outgoing.is_connecting()) write(peer);
  }
  // Reads on, so that two ranks that close while much is queued between them do not wait for each
  // other.
  while (!unflushed().empty() && Clock::now() < deadline) {
    if (!progress()) wait_readable(epoll_.get(), deadline);
  }
  const auto left = unflushed();
  say_last_words();
  phase_ = Phase::closed;
  if (left.empty()) return {};
  return Status(
      ErrorCode::timeout,
      str("control messages to ", describe_ranks(left), " were not sent before the deadline"),
      left.front());
}

void SocketControl::say_last_words() {
  const auto part = [&](SocketLink& link, bool more_to_come) {
    if (!link.is_open()) return;
    const std::byte flag{1};
    link.enqueue(frame_of(FrameKind::good_bye, std::span(&flag, more_to_come ? 1 : 0)));
    if (Status status = link.write(); !status) log(LogLevel::debug, status.to_string());
    ::shutdown(link.fd(), SHUT_WR);
    unwatch(link);
  };
  for (Peer& peer : peers_) {
    part(peer.incoming, peer.outgoing.is_open());
    if (!peer.outgoing.is_open()) continue;
    // A socket that is closed with something unread in it resets the connection, and what was sent
    // last may be lost.
    if (Status status = peer.outgoing.read(); !status) log(LogLevel::trace, status.to_string());
    ::shutdown(peer.outgoing.fd(), SHUT_WR);
    unwatch(peer.outgoing);
  }
  for (Stranger& stranger : strangers_) part(stranger.link, false);
  for (Listener& listener : listeners_) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd.get(), nullptr);
    listener.fd.reset();
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, wake_.get(), nullptr);
}

// The parent may be in the middle of anything: only descriptors are looked at, in arrays that never
// move.
void SocketControl::close_after_fork() {
  for (Peer& peer : peers_) {
    peer.outgoing.drop();
    peer.incoming.drop();
  }
  for (Stranger& stranger : strangers_) stranger.link.drop();
  for (Listener& listener : listeners_) listener.fd.reset();
  wake_.reset();
  epoll_.reset();
  phase_ = Phase::closed;
}

std::string key_of(std::string_view what, int rank) {
  return str("control/", what, "/", rank);
}

Expected<std::vector<Listener>> listen_for(Bootstrap& bootstrap, std::span<const int> host_of,
                                           const std::string& interface) {
  std::vector<Listener> listeners;
  auto local = listen_on(str("unix:@rueda-", random_name()));
  if (!local) return local.status();
  if (Status put = bootstrap.put(key_of("unix", bootstrap.rank()), local->address); !put)
    return put;
  listeners.push_back(std::move(local).value());
  if (std::adjacent_find(host_of.begin(), host_of.end(), std::not_equal_to<>()) == host_of.end()) {
    return listeners;
  }
  const auto host = reachable_address(interface);
  if (!host) return host.status();
  auto remote = listen_on(join_tcp(host.value(), 0));
  if (!remote) return remote.status();
  if (Status put = bootstrap.put(key_of("tcp", bootstrap.rank()), remote->address); !put)
    return put;
  listeners.push_back(std::move(remote).value());
  return listeners;
}

}  // namespace

Expected<std::unique_ptr<ControlLane>> open_control_socket(Bootstrap& bootstrap,
                                                           std::span<const int> host_of,
                                                           const std::string& interface,
                                                           Time deadline) {
  const int rank = bootstrap.rank();
  const Status failed(ErrorCode::initialization, "the control lane cannot be opened");
  if (rank == 0) {
    if (Status put = bootstrap.put("control/world", random_name()); !put)
      return failed.because(put);
  }
  auto listeners = listen_for(bootstrap, host_of, interface);
  // A rank that failed meets the others none the less: they find that its address is missing, and
  // need not wait.
  const Status met = bootstrap.barrier(deadline);
  if (!listeners) return failed.because(listeners.status());
  if (!met) return failed.because(met);
  std::vector<std::string> addresses;
  for (int peer = 0; peer < bootstrap.size(); ++peer) {
    const bool same_host =
        host_of[static_cast<std::size_t>(peer)] == host_of[static_cast<std::size_t>(rank)];
    auto address = bootstrap.get(key_of(same_host ? "unix" : "tcp", peer));
    if (!address) {
      return Status(ErrorCode::initialization,
                    str("rank ", peer, " could not open its control lane"), peer)
          .because(address.status());
    }
    addresses.push_back(std::move(address).value());
  }
  const auto world = bootstrap.get("control/world");
  if (!world) return failed.because(world.status());
  // Of the word that the ranks hear of each other, and of what they knew before: whoever listens to
  // the bootstrap alone does not know it.
  const Key key = Key(bootstrap.secret()).derive({"rueda control lane", world.value()});
  auto lane = std::make_unique<SocketControl>(rank, std::move(addresses),
                                              std::move(listeners).value(), key);
  if (Status opened = lane->open(); !opened) return failed.because(opened);
  return std::unique_ptr<ControlLane>(std::move(lane));
}

}  // namespace rueda
