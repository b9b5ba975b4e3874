// Ranks with several interfaces: every message arrives once and in order even if all paths but one
// fail, and a failed path is used again.
#include "transport/peer_paths.h"

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/wait_fd.h"
#include "ranks/rank_threads.h"
#include "transport/connections.h"
#include "transport/handshake.h"

namespace rueda::test::peer_paths_test {

namespace {

const Key key("the world's key");
constexpr std::string_view protocol = "ruedates";
constexpr int paths = 2;

// The network between a listener and its callers: forwards bytes, or holds them back.
class Network {
 public:
  explicit Network(std::string target) : target_(std::move(target)) {
    auto listener = listen_on("tcp:127.0.0.1:0");
    REQUIRE(listener.ok());
    listener_ = std::move(listener).value();
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] const std::string& address() const { return listener_.address; }
  // The number of connections accepted, plus one if another is waiting.
  [[nodiscard]] int called() const {
    return accepted + (wait_readable(listener_.fd.get(), Clock::now()) ? 1 : 0);
  }

  // Forwards what it can, up to `bound` bytes per direction of each connection.
  void progress(std::size_t bound = 65536) {
    if (is_silent) return;
    while (UniqueFd caller = accept_from(listener_.fd.get()).fd) {
      if (is_cut) continue;
      auto called = start_connecting(target_);
      REQUIRE(called.ok());
      REQUIRE(wait_writable(called->get(), soon()));
      connections_.push_back({std::move(caller), std::move(called).value(), {}, {}});
      ++accepted;
    }
    for (Connection& each : connections_) {
      pass(each.caller, each.called, each.to_called, bound);
      pass(each.called, each.caller, each.to_caller, bound);
    }
  }

  // Resets all connections and refuses new ones until mend().
  void cut() {
    is_cut = true;
    for (Connection& each : connections_) {
      reset(each.caller);
      reset(each.called);
    }
    connections_.clear();
  }
  void mend() { is_cut = false; }

  bool is_silent = false;
  bool is_cut = false;
  int accepted = 0;

 private:
  struct Connection {
    UniqueFd caller;
    UniqueFd called;
    std::vector<char> to_called;
    std::vector<char> to_caller;
  };

  static void reset(UniqueFd& end) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    end.reset();
  }

  // A reset of one end, which the first call on it reports, is passed to the other end.
  static void pass(UniqueFd& from, UniqueFd& to, std::vector<char>& waiting, std::size_t bound) {
    if (!from || !to) return;
    bool is_broken = false;
    if (waiting.empty()) {
      waiting.resize(bound);
      const ssize_t got = ::recv(from.get(), waiting.data(), bound, MSG_DONTWAIT);
      is_broken = got < 0 && errno != EAGAIN;
      waiting.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
      if (got == 0) ::shutdown(to.get(), SHUT_WR);
    }
    if (!waiting.empty()) {
      const ssize_t sent =
          ::send(to.get(), waiting.data(), waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      is_broken = is_broken || (sent < 0 && errno != EAGAIN);
      if (sent > 0) waiting.erase(waiting.begin(), waiting.begin() + sent);
    }
    if (!is_broken) return;
    reset(from);
    reset(to);
  }

  const std::string target_;
  Listener listener_;
  std::vector<Connection> connections_;
};

// Two ranks as if on two hosts with two interfaces each.
class TwoRanks {
 public:
  TwoRanks() {
    set_log_level(LogLevel::off);
    std::array<std::vector<Listener>, 2> listeners;
    std::array<std::vector<std::string>, 2> addresses;
    for (std::size_t rank : {0, 1}) {
      for (int path = 0; path < paths; ++path) {
        auto listener = listen_on("tcp:127.0.0.1:0");
        REQUIRE(listener.ok());
        networks_.push_back(std::make_unique<Network>(listener->address));
        own_addresses_[rank].push_back(listener->address);
        addresses[rank].push_back(networks_.back()->address());
        listeners[rank].push_back(std::move(listener).value());
      }
    }
    for (std::size_t rank : {0, 1}) {
      Connections::Settings settings{
          "a test", protocol, static_cast<int>(rank), {addresses[0], addresses[1]}, {}, key};
      settings.listeners = std::move(listeners[rank]);
      settings.own_hosts = {"127.0.0.1", "127.0.0.1"};
      settings.reopen_pause = std::chrono::milliseconds(20);
      ends_[rank].emplace(
          std::move(settings),
          Connections::Handlers{
              [this, rank](int, auto payload) { received[rank].push_back(number_in(payload)); },
              [this, rank](int, const Status& cause) { losses[rank].push_back(cause); }, [] {}});
      REQUIRE(ends_[rank]->open().ok());
    }
  }
  ~TwoRanks() { set_log_level(LogLevel::warning); }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  Connections& end(std::size_t rank) { return *ends_[rank]; }
  // The network through which `rank` is called on this path.
  Network& network(std::size_t rank, int path) {
    return *networks_[rank * paths + static_cast<std::size_t>(path)];
  }
  // Applies `act` to both directions of a path.
  void on_path(int path, const std::function<void(Network&)>& act) {
    for (std::size_t rank : {0, 1}) act(network(rank, path));
  }
  [[nodiscard]] const std::string& own_address(std::size_t rank, std::size_t path) const {
    return own_addresses_[rank][path];
  }

  // Sends the next number, followed by `padding` bytes.
  void send(std::size_t rank, std::size_t padding = 0) {
    std::vector<std::byte> payload(sizeof(int) + padding);
    std::memcpy(payload.data(), &sent[rank], sizeof(int));
    ++sent[rank];
    ends_[rank]->send(static_cast<int>(1 - rank), payload);
  }
  void progress(std::size_t bound = 65536) {
    progress_networks(bound);
    for (auto& end : ends_) end->progress();
  }
  void progress_networks(std::size_t bound = 65536) {
    for (auto& network : networks_) network->progress(bound);
  }
  void progress_until(const std::function<bool()>& done, const char* what) {
    await(
        [&] {
          progress();
          return done();
        },
        what);
  }
  void await_all() {
    progress_until(
        [&] {
          return received[0].size() >= static_cast<std::size_t>(sent[1]) &&
                 received[1].size() >= static_cast<std::size_t>(sent[0]);
        },
        "the messages");
  }
  // All numbers have arrived once and in order, and no peer was lost.
  void check() {
    for (std::size_t rank : {0, 1}) {
      std::vector<int> expected;
      for (int number = 0; number < sent[1 - rank]; ++number) expected.push_back(number);
      CHECK(received[rank] == expected);
      CHECK(losses[rank].empty());
    }
  }

  std::array<int, 2> sent{};
  std::array<std::vector<int>, 2> received;
  std::array<std::vector<Status>, 2> losses;

 private:
  static int number_in(std::span<const std::byte> payload) {
    int number = -1;
    REQUIRE(payload.size() >= sizeof number);
    std::memcpy(&number, payload.data(), sizeof number);
    return number;
  }

  std::vector<std::unique_ptr<Network>> networks_;
  std::array<std::vector<std::string>, 2> own_addresses_;
  std::array<std::optional<Connections>, 2> ends_;
};

}  // namespace

TEST_CASE("over several paths each message comes once and in order, however they race") {
  std::mt19937 random(GENERATE(range(0U, 5U)));
  TwoRanks ranks;
  for (int round = 0; round < 300; ++round) {
    if (random() % 3 == 0) ranks.send(random() % 2, random() % 1000);
    ranks.on_path(static_cast<int>(random() % paths),
                  [&](Network& network) { network.is_silent = random() % 2 == 0; });
    ranks.progress(1 + random() % 300);
  }
  for (int path = 0; path < paths; ++path) {
    ranks.on_path(path, [](Network& network) { network.is_silent = false; });
  }
  ranks.await_all();
  ranks.check();
  for (std::size_t rank : {0, 1}) CHECK(ranks.network(rank, 1).accepted == 1);
}

TEST_CASE("a path that was reset or is silent from the start delays no message") {
  TwoRanks ranks;
  const int path = GENERATE(0, 1);
  const bool is_silent = GENERATE(false, true);
  ranks.on_path(path, [&](Network& network) {
    network.is_silent = is_silent;
    network.is_cut = !is_silent;
  });
  const std::array<int, 2> both{0, 1};
  REQUIRE(ranks.end(0).connect(both, soon()).ok());
  for (int count = 0; count < 20; ++count) ranks.send(static_cast<std::size_t>(count % 2), 100);
  ranks.await_all();
  ranks.check();
}

TEST_CASE("a path that was cut is used again, and may then be the only one") {
  TwoRanks ranks;
  const auto exchange = [&] {
    for (std::size_t rank : {0, 1}) {
      for (int count = 0; count < 5; ++count) ranks.send(rank);
    }
    ranks.await_all();
  };
  exchange();
  for (const int path : {0, 1, 0}) {
    std::array<int, 2> before{};
    for (std::size_t rank : {0, 1}) before[rank] = ranks.network(rank, path).accepted;
    ranks.on_path(path, [](Network& network) { network.cut(); });
    exchange();
    ranks.on_path(path, [](Network& network) { network.mend(); });
    ranks.progress_until(
        [&] {
          return ranks.network(0, path).accepted > before[0] &&
                 ranks.network(1, path).accepted > before[1];
        },
        "the path that is opened again");
    exchange();
    // Proves that this path carries messages, because it is the only one that does.
    ranks.on_path(1 - path, [](Network& network) { network.is_silent = true; });
    exchange();
    ranks.on_path(1 - path, [](Network& network) { network.is_silent = false; });
  }
  ranks.check();
}

TEST_CASE("what waits for a silent path is bounded") {
  TwoRanks ranks;
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  const int path = GENERATE(0, 1);
  const int before = ranks.network(1, path).accepted;
  ranks.on_path(path, [](Network& network) { network.is_silent = true; });
  for (int count = 0; count < 40; ++count) {
    ranks.send(0, std::size_t{1} << 20);
    ranks.await_all();
  }
  ranks.on_path(path, [](Network& network) { network.is_silent = false; });
  ranks.progress_until([&] { return ranks.network(1, path).accepted > before; },
                       "that the path was given up, and is opened again");
  ranks.send(0);
  ranks.await_all();
  ranks.check();
}

TEST_CASE("a peer is lost with its last path") {
  TwoRanks ranks;
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  for (int path = 0; path < paths; ++path) {
    ranks.on_path(path, [](Network& network) { network.cut(); });
  }
  ranks.progress_until([&] { return !ranks.losses[0].empty() && !ranks.losses[1].empty(); },
                       "the losses");
  for (std::size_t rank : {0, 1}) {
    CHECK(ranks.losses[rank].size() == 1);
    CHECK(ranks.losses[rank].front().details().reason == ErrorReason::refused);
    CHECK(ranks.end(rank).has_left(static_cast<int>(1 - rank)));
  }
}

TEST_CASE("a path that is only being tried again keeps no peer alive") {
  TwoRanks ranks;
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  const int first = GENERATE(0, 1);
  std::array<int, 2> before{};
  for (std::size_t rank : {0, 1}) before[rank] = ranks.network(rank, first).called();
  // Resets open connections; later ones are accepted but never answered.
  ranks.on_path(first, [](Network& network) {
    network.cut();
    network.mend();
    network.is_silent = true;
  });
  ranks.progress_until(
      [&] {
        return ranks.network(0, first).called() > before[0] &&
               ranks.network(1, first).called() > before[1];
      },
      "that the path is tried again");
  ranks.on_path(1 - first, [](Network& network) { network.cut(); });
  ranks.progress_until([&] { return !ranks.losses[0].empty() && !ranks.losses[1].empty(); },
                       "the losses");
}

TEST_CASE("a rank that only receives from a peer notices its loss") {
  TwoRanks ranks;
  ranks.send(1);
  ranks.await_all();
  for (int path = 0; path < paths; ++path) {
    ranks.on_path(path, [](Network& network) { network.cut(); });
  }
  ranks.progress_until([&] { return !ranks.losses[0].empty(); }, "the loss");
}

TEST_CASE("that a process has ended is known from one path") {
  TwoRanks ranks;
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  ranks.on_path(0, [](Network& network) { network.is_silent = true; });
  ranks.end(1).close_after_fork();
  ranks.progress_until([&] { return !ranks.losses[0].empty(); }, "the loss");
  CHECK(ranks.losses[0].front().details().reason == ErrorReason::ended);
}

TEST_CASE("a rank that leaves says good-bye over one path where another is silent") {
  TwoRanks ranks;
  const int path = GENERATE(0, 1);
  const bool from_the_start = GENERATE(false, true);
  const auto silence = [&] {
    ranks.on_path(path, [](Network& network) { network.is_silent = true; });
  };
  if (from_the_start) silence();
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  silence();
  ranks.send(0);
  std::vector<int> left;
  std::atomic<bool> is_closed = false;
  std::thread closing([&] {
    left = ranks.end(0).close(soon());
    is_closed = true;
  });
  while (!is_closed) ranks.progress_networks();
  closing.join();
  CHECK(left.empty());
  ranks.progress_until([&] { return ranks.end(1).has_left(0); }, "the good-bye");
  ranks.check();
}

TEST_CASE("a peer that is leaving is not called again") {
  auto own = listen_on("tcp:127.0.0.1:0");
  auto other = listen_on("tcp:127.0.0.1:0");
  REQUIRE((own.ok() && other.ok()));
  Connections::Settings settings{"a test", protocol, 0, {{own->address}, {other->address}},
                                 {},       key};
  settings.listeners.push_back(std::move(own).value());
  Connections connections(std::move(settings),
                          {[](int, auto) {}, [](int, const Status&) {}, [] {}});
  REQUIRE(connections.open().ok());
  connections.send(1, {});
  REQUIRE(wait_readable(other->fd.get(), soon()));
  SocketLink link(accept_from(other->fd.get()).fd, false);
  link.enqueue(frame_of(FrameKind::welcome, Handshake(protocol, key, 1, 2).welcome_to(0)));
  const std::byte more_to_come{1};
  link.end_with(frame_of(FrameKind::good_bye, std::span(&more_to_come, 1)));
  await(
      [&] {
        connections.progress();
        return !link.read().ok();  // closed
      },
      "the good-bye");
  connections.send(1, {});
  connections.progress();
  CHECK_FALSE(wait_readable(other->fd.get(), Clock::now()));
}

TEST_CASE("an overheard hello opens no path again") {
  TwoRanks ranks;
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  const std::uint64_t used = GENERATE(std::uint64_t{0}, std::uint64_t{1} << 32,
                                      std::uint64_t{paths} << 32);  // the last: a third path
  auto stranger = start_connecting(ranks.own_address(0, 0));
  REQUIRE(stranger.ok());
  REQUIRE(wait_writable(stranger->get(), soon()));
  const auto hello = Handshake(protocol, key, 1, 2).hello_to(0, used);
  REQUIRE(::send(stranger->get(), hello.data(), hello.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(hello.size()));
  ranks.progress_until([&] { return wait_readable(stranger->get(), Clock::now()); }, "the answer");
  std::array<std::byte, 16> answer{};
  CHECK(::recv(stranger->get(), answer.data(), answer.size(), 0) <= 0);  // rejected
  for (std::size_t rank : {0, 1}) ranks.send(rank);
  ranks.await_all();
  ranks.check();
}

TEST_CASE("messages that were lost with the other path are the loss of their sender") {
  set_log_level(LogLevel::off);
  std::vector<Listener> listeners;
  for (int path = 0; path < paths; ++path) {
    auto listener = listen_on("tcp:127.0.0.1:0");
    REQUIRE(listener.ok());
    listeners.push_back(std::move(listener).value());
  }
  const std::vector<std::string> own{listeners[0].address, listeners[1].address};
  Connections::Settings settings{"a test", protocol, 0, {own, own}, {}, key};
  settings.listeners = std::move(listeners);
  settings.own_hosts = {"127.0.0.1", "127.0.0.1"};
  int received = 0;
  Status loss;
  Connections connections(
      std::move(settings),
      {[&](int, auto) { ++received; }, [&](int, const Status& why) { loss = why; }, [] {}});
  REQUIRE(connections.open().ok());
  const Handshake peer(protocol, key, 1, 2);
  const auto call = [&](std::size_t path, std::uint64_t number, std::uint64_t before) {
    auto fd = start_connecting(own[path]);
    REQUIRE(fd.ok());
    SocketLink link(std::move(fd).value(), true);
    REQUIRE(wait_writable(link.fd(), soon()));
    link.enqueue(peer.hello_to(0, std::uint64_t{path} << 32 | number));
    if (before > 0) {
      link.enqueue(frame_of(FrameKind::resume, std::as_bytes(std::span(&before, 1))));
    }
    REQUIRE(link.write().ok());
    return link;
  };
  const auto say = [](SocketLink& link, int messages) {
    for (int count = 0; count < messages; ++count) link.enqueue(frame_of(FrameKind::message, {}));
    REQUIRE(link.write().ok());
  };
  const auto progress_until = [&](const std::function<bool()>& done) {
    await(
        [&] {
          connections.progress();
          return done();
        },
        "the connections");
  };
  SocketLink first = call(0, 0, 0);
  SocketLink second = call(1, 0, 0);
  say(first, 3);
  progress_until([&] { return received == 3; });
  first.reset();
  first = call(0, 1, 5);  // the fourth and fifth will come over the second path
  say(first, 1);
  say(second, 4);
  progress_until([&] { return received == 4; });
  CHECK(loss.ok());
  second.reset();
  progress_until([&] { return !loss.ok(); });
  CHECK(received == 4);
  set_log_level(LogLevel::warning);
}

}  // namespace rueda::test::peer_paths_test
