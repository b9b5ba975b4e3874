// An answer to a connection attempt is trusted only with a proof, even if it is a good-bye.
#include "transport/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/log.h"
#include "core/wait_fd.h"
#include "ranks/rank_threads.h"
#include "unit/no_descriptors.h"

namespace rueda::test::connections_test {

namespace {

const Key key("the world's key");
constexpr std::string_view protocol = "ruedates";

// What rank 0 of two concludes about rank 1 if an impostor answers each connection with `good_bye`
// and closes it.
struct Concluded {
  bool has_left = false;
  bool is_lost = false;
};
Concluded conclude(std::span<const std::byte> good_bye) {
  auto own = listen_on("unix:@rueda-test-" + random_name());
  auto other = listen_on("unix:@rueda-test-" + random_name());
  REQUIRE((own.ok() && other.ok()));
  Connections::Settings settings{"a test", protocol, 0, {{own->address}, {other->address}},
                                 {},       key};
  settings.listeners.push_back(std::move(own).value());
  Concluded concluded;
  Connections connections(std::move(settings),
                          {[](int, std::span<const std::byte>) {},
                           [&](int, const Status&) { concluded.is_lost = true; }, [] {}});
  REQUIRE(connections.open().ok());
  connections.send(1, {});
  const Time deadline = soon();
  while (!connections.has_left(1)) {
    REQUIRE(Clock::now() < deadline);
    if (Accepted call = accept_from(other->fd.get()); call.fd) {
      SocketLink(std::move(call.fd), false).end_with(frame_of(FrameKind::good_bye, good_bye));
    }
    connections.progress();
  }
  concluded.has_left = true;
  static_cast<void>(connections.close(Clock::now()));
  return concluded;
}

}  // namespace

TEST_CASE("a good-bye before the welcome is believed with a proof") {
  const Handshake rank_one(protocol, key, 1, 2);
  CHECK_FALSE(conclude(rank_one.good_bye()).is_lost);
}

TEST_CASE("a good-bye without a proof, or with another rank's, is a loss") {
  const Handshake rank_one(protocol, key, 1, 2);
  const Handshake rank_zero(protocol, key, 0, 2);
  const Handshake stranger(protocol, Key("another key"), 1, 2);
  CHECK(conclude({}).is_lost);
  CHECK(conclude(rank_zero.good_bye()).is_lost);
  CHECK(conclude(stranger.good_bye()).is_lost);
  CHECK(conclude(rank_one.welcome_to(0)).is_lost);
}

namespace {

// Rank 0 of two. The other's process ends on request; nothing answers in its place.
class Survivor {
 public:
  Survivor() {
    auto own = listen_on("unix:@rueda-test-" + random_name());
    auto other = listen_on("unix:@rueda-test-" + random_name());
    REQUIRE((own.ok() && other.ok()));
    other_ = std::move(other->fd);
    Connections::Settings settings{"a test", protocol, 0, {{own->address}, {other->address}},
                                   {},       key};
    settings.listeners.push_back(std::move(own).value());
    connections_.emplace(std::move(settings),
                         Connections::Handlers{[](int, std::span<const std::byte>) {},
                                               [this](int peer, const Status& why) {
                                                 lost.push_back(peer);
                                                 causes.push_back(why.to_string());
                                               },
                                               [] {}});
    REQUIRE(connections_->open().ok());
    connections_->watch_end(1, {event_.get(), [this] { return --looks_until_end < 0; }});
  }
  Survivor(const Survivor&) = delete;
  Survivor& operator=(const Survivor&) = delete;

  void end_peer(int looks) {
    looks_until_end = looks;
    REQUIRE(::eventfd_write(event_.get(), 1) == 0);
  }
  void progress_until(const std::function<bool()>& done) {
    for (const Time deadline = soon(); !done();) {
      REQUIRE(Clock::now() < deadline);
      if (!connections_->progress()) wait_readable(connections_->wait_fd(), deadline);
    }
  }
  Connections& connections() { return *connections_; }
  // Accepts a connection that rank 0 has opened to rank 1.
  [[nodiscard]] Accepted accept() const { return accept_from(other_.get()); }

  std::vector<int> lost;
  std::vector<std::string> causes;
  int looks_until_end = 0;

 private:
  UniqueFd other_;
  UniqueFd event_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::optional<Connections> connections_;
};

}  // namespace

TEST_CASE("the end of a peer's process is its loss, as soon as nothing of it runs") {
  const int looks = GENERATE(0, 1, 5);
  Survivor survivor;
  survivor.connections().send(1, {});
  survivor.end_peer(looks);
  survivor.progress_until([&] { return survivor.connections().has_left(1); });
  CHECK(survivor.looks_until_end < 0);
  REQUIRE(survivor.causes.size() == 1);
  CHECK(survivor.causes[0].find("its process has ended") != std::string::npos);
}

TEST_CASE("a peer that said good-bye before its process ended is no loss") {
  Survivor survivor;
  survivor.connections().send(1, {});
  const Accepted call = survivor.accept();
  REQUIRE(call.fd);
  const auto good_bye = frame_of(FrameKind::good_bye, Handshake(protocol, key, 1, 2).good_bye());
  REQUIRE(::send(call.fd.get(), good_bye.data(), good_bye.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(good_bye.size()));
  survivor.end_peer(0);
  survivor.progress_until([&] { return survivor.connections().has_left(1); });
  CHECK(survivor.causes.empty());
}

TEST_CASE("a peer that was never called is lost when it is") {
  Survivor survivor;
  survivor.end_peer(0);
  survivor.progress_until([&] { return survivor.looks_until_end < 0; });
  CHECK(survivor.causes.empty());
  CHECK_FALSE(survivor.connections().has_left(1));
  survivor.connections().send(1, {});
  survivor.progress_until([&] { return survivor.connections().has_left(1); });
  CHECK(survivor.causes.size() == 1);
  CHECK_FALSE(survivor.connections().was_connected(1));
}

TEST_CASE("ranks have been connected once one has let the other in, also when that has ended") {
  auto first = listen_on("unix:@rueda-test-" + random_name());
  auto second = listen_on("unix:@rueda-test-" + random_name());
  REQUIRE((first.ok() && second.ok()));
  const std::vector<std::vector<std::string>> addresses{{first->address}, {second->address}};
  const Connections::Handlers nothing{[](int, std::span<const std::byte>) {},
                                      [](int, const Status&) {}, [] {}};
  const auto settings = [&](int rank, Listener listener) {
    Connections::Settings own{"a test", protocol, rank, addresses, {}, key};
    own.listeners.push_back(std::move(listener));
    return own;
  };
  Connections caller(settings(0, std::move(first).value()), nothing);
  Connections called(settings(1, std::move(second).value()), nothing);
  REQUIRE((caller.open().ok() && called.open().ok()));
  CHECK_FALSE(caller.was_connected(1));
  caller.send(1, {});
  await(
      [&] {
        caller.progress();
        called.progress();
        return caller.was_connected(1) && called.was_connected(0);
      },
      "the connection");
  CHECK(caller.close(Clock::now()).empty());
  await(
      [&] {
        called.progress();
        return called.has_left(0);
      },
      "the good-bye");
  CHECK(called.was_connected(0));
  CHECK(called.close(Clock::now()).empty());
}

TEST_CASE("that a rank has no descriptor for a connection is no suspicion of its peer") {
  using namespace std::chrono_literals;
  Survivor survivor;
  std::optional<NoDescriptors> none(std::in_place);
  survivor.connections().send(1, {});
  const Time until = Clock::now() + 500ms;
  survivor.progress_until([&] { return Clock::now() >= until; });
  CHECK(survivor.causes.empty());
  CHECK_FALSE(survivor.connections().has_left(1));
  none.reset();
  Accepted call;
  survivor.progress_until([&] {
    if (!call.fd) call = survivor.accept();
    return static_cast<bool>(call.fd);
  });
  CHECK(survivor.causes.empty());
}

TEST_CASE("a rank that has no descriptor for long is the one that fails") {
  Survivor survivor;
  const NoDescriptors none;
  survivor.connections().send(1, {});
  survivor.progress_until([&] { return !survivor.causes.empty(); });
  CHECK(survivor.lost == std::vector<int>{0});
  CHECK(survivor.causes.front().find("Too many open files") != std::string::npos);
  CHECK_FALSE(survivor.connections().has_left(1));
}

TEST_CASE("connections between hosts are given up after as long as their owner says") {
  using namespace std::chrono_literals;
  auto own = listen_on("tcp:127.0.0.1:0");
  auto other = listen_on("tcp:127.0.0.1:0");
  REQUIRE((own.ok() && other.ok()));
  Connections::Settings settings{.name = "a test",
                                 .protocol = protocol,
                                 .rank = 0,
                                 .addresses = {{own->address}, {other->address}},
                                 .listeners = {},
                                 .key = key,
                                 .network_timeout = 120s};
  settings.listeners.push_back(std::move(own).value());
  const std::string own_address = settings.addresses[0][0];
  Connections connections(std::move(settings), {[](int, std::span<const std::byte>) {},
                                                [](int, const Status&) {}, [] {}});
  REQUIRE(connections.open().ok());
  connections.send(1, {});
  auto call = start_connecting(own_address);
  REQUIRE(call.ok());
  REQUIRE(wait_writable(call->get(), soon()));
  const auto hello = Handshake(protocol, key, 1, 2).hello_to(0);
  REQUIRE(::send(call->get(), hello.data(), hello.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(hello.size()));
  const Time deadline = soon();
  while (!wait_readable(call->get(), Clock::now())) {  // the welcome has not come
    REQUIRE(Clock::now() < deadline);
    connections.progress();
  }
  std::vector<unsigned> network_timeout;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (fd == call->get() || ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) {
      continue;
    }
    unsigned milliseconds = 0;
    length = sizeof milliseconds;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &length) == 0) {
      network_timeout.push_back(milliseconds);
    }
  }
  CHECK(std::ranges::count(network_timeout, 120'000U) == 2);  // both directions
  static_cast<void>(connections.close(Clock::now()));
}

namespace {

int port_of(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

int port_of(int fd, decltype(&::getsockname) ask) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  const bool is_known = ask(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return is_known && address.sin_family == AF_INET ? ntohs(address.sin_port) : -1;
}

// Two ranks as if on different hosts, connected in both directions.
class OverNetwork {
 public:
  OverNetwork() {
    for (int rank : {0, 1}) {
      auto listener = listen_on("tcp:127.0.0.1:0");
      REQUIRE(listener.ok());
      addresses_[static_cast<std::size_t>(rank)] = listener->address;
      listeners_.push_back(std::move(listener).value());
    }
    survivor_.emplace(
        settings(0), Connections::Handlers{[](int, std::span<const std::byte>) {},
                                           [&](int, const Status& cause) { told = cause; }, [] {}});
    other_.emplace(settings(1), Connections::Handlers{
                                    [](int, std::span<const std::byte>) {},
                                    [&](int, const Status& cause) { told_other = cause; }, [] {}});
    REQUIRE((survivor_->open().ok() && other_->open().ok()));
    listeners_.clear();
  }

  void connect() {
    survivor_->send(1, {});
    other_->send(0, {});
    progress_until([&] { return survivor_->was_connected(1) && other_->was_connected(0); });
    // Until the welcomes have arrived, too.
    for (int look = 0; look < 100; ++look) progress_until([] { return true; });
  }

  enum class Reset : std::uint8_t { none, one, both };
  // Closes all of the other's connections, as when its process ends.
  void close_other(Reset reset) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    for (int fd = 3; fd < 1024; ++fd) {
      const bool has_called = port_of(fd, ::getpeername) == port_of(addresses_[0]);
      if ((is_called(fd) && reset != Reset::none) || (has_called && reset == Reset::both)) {
        REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
      }
    }
    other_->close_after_fork();
    other_.reset();
  }

  // Resets the connection that the survivor has opened, as a network may.
  void reset_connection() {
    const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    for (int fd = 3; fd < 1024; ++fd) {
      if (is_called(fd)) REQUIRE(::connect(fd, &nobody, sizeof nobody) == 0);
    }
  }
  // What each of the two concludes about the other.
  std::pair<Status, Status> conclude_both() {
    progress_until([&] { return !told.ok() && !told_other.ok(); });
    return {told, told_other};
  }

  Status conclude() {
    const Time deadline = soon();
    while (told.ok()) {
      REQUIRE(Clock::now() < deadline);
      if (!survivor_->progress()) wait_readable(survivor_->wait_fd(), deadline);
    }
    return told;
  }
  Connections& survivor() { return *survivor_; }

 private:
  [[nodiscard]] bool is_called(int fd) const {
    return port_of(fd, ::getpeername) != -1 && port_of(fd, ::getsockname) == port_of(addresses_[1]);
  }
  Connections::Settings settings(int rank) {
    Connections::Settings settings{"a test", protocol, rank, {{addresses_[0]}, {addresses_[1]}},
                                   {},       key};
    settings.listeners.push_back(std::move(listeners_[static_cast<std::size_t>(rank)]));
    return settings;
  }
  void progress_until(const std::function<bool()>& done) {
    await(
        [&] {
          survivor_->progress();
          other_->progress();
          return done();
        },
        "the connections");
  }

  Status told;
  Status told_other;
  std::array<std::string, 2> addresses_;
  std::vector<Listener> listeners_;
  std::optional<Connections> survivor_;
  std::optional<Connections> other_;
};

}  // namespace

TEST_CASE("between hosts only a connection that is closed shows that a process has ended") {
  using Reset = OverNetwork::Reset;
  const Reset reset = GENERATE(Reset::none, Reset::one, Reset::both);
  OverNetwork network;
  network.connect();
  if (GENERATE(false, true)) network.survivor().send(1, {});  // with unread data
  network.close_other(reset);
  const Status told = network.conclude();
  CHECK(told.code() == ErrorCode::peer_lost);
  const bool is_certain = reset != Reset::both;
  CHECK(told.details().reason == (is_certain ? ErrorReason::ended : ErrorReason::refused));
}

TEST_CASE("between hosts one that counts a peer as lost is not taken for ended by it") {
  OverNetwork network;
  network.connect();
  network.reset_connection();
  const auto [told, told_other] = network.conclude_both();
  CHECK(told.details().reason == ErrorReason::refused);
  CHECK(told_other.details().reason == ErrorReason::refused);
}

TEST_CASE("between hosts a call that is refused says so") {
  OverNetwork network;
  network.close_other(OverNetwork::Reset::none);
  network.survivor().send(1, {});
  CHECK(network.conclude().details().reason == ErrorReason::refused);
}

}  // namespace rueda::test::connections_test
