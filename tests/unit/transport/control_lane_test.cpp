#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "core/log.h"
#include "core/wait_fd.h"
#include "effort.h"
#include "ranks/rank_threads.h"
#include "transport/control_socket.h"
#include "transport/inproc.h"
#include "transport/socket.h"

namespace rueda::test::control_lane_test {

namespace {

using Message = std::vector<std::byte>;
using LanePtr = std::unique_ptr<ControlLane>;

LanePtr open_socket_lane(Bootstrap& bootstrap, bool one_host) {
  std::vector<int> host_of(static_cast<std::size_t>(bootstrap.size()), 0);
  if (!one_host) std::iota(host_of.begin(), host_of.end(), 0);
  auto lane = open_control_socket(bootstrap, host_of, "127.0.0.1", soon());
  expect_ok(lane.status(), "opening the control lane");
  return std::move(lane).value();
}

struct Kind {
  const char* name;
  LanePtr (*make)(Bootstrap&, InprocHub&);
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"inproc",
       [](Bootstrap& self, InprocHub& hub) { return hub.make_control_lane(self.rank()); }},
      {"unix", [](Bootstrap& self, InprocHub&) { return open_socket_lane(self, true); }},
      {"tcp", [](Bootstrap& self, InprocHub&) { return open_socket_lane(self, false); }},
  };
  return all;
}

Message numbered(std::size_t size, std::uint32_t number) {
  Message message(std::max(size, sizeof number));
  std::memcpy(message.data(), &number, sizeof number);
  for (std::size_t i = sizeof number; i < message.size(); ++i) {
    message[i] = static_cast<std::byte>(i * 7 + number);
  }
  return message;
}

// One rank's lane and all that it has reported.
struct Listening {
  explicit Listening(LanePtr opened) : lane(std::move(opened)) {
    const auto size = static_cast<std::size_t>(lane->size());
    received.resize(size);
    losses.resize(size);
    lane->on_message([this](int peer, std::span<const std::byte> message) {
      received[static_cast<std::size_t>(peer)].emplace_back(message.begin(), message.end());
    });
    lane->on_loss([this](int peer, const Status& cause) {
      losses[static_cast<std::size_t>(peer)].push_back(cause);
    });
  }

  // Sleeps on the descriptor until enough() is true.
  void until(const std::function<bool()>& enough, const char* what) {
    const Time deadline = soon();
    while (!enough()) {
      expect(Clock::now() < deadline, str("waited in vain for ", what));
      if (!lane->progress()) wait_readable(lane->wait_fd(), deadline);
    }
  }
  [[nodiscard]] std::size_t count(int peer) const {
    return received[static_cast<std::size_t>(peer)].size();
  }
  // The descriptor is readable only if there is work to do, such as a connection that ends after
  // the loss was reported.
  void expect_quiet() const {
    while (lane->progress()) {
    }
    for (int wakes = 0; wait_readable(lane->wait_fd(), Clock::now()); ++wakes) {
      expect(wakes < 100, "an idle lane becomes quiet");
      expect(lane->progress(), "what wakes an idle lane is something to do");
    }
  }
  [[nodiscard]] std::size_t loss_count() const {
    std::size_t sum = 0;
    for (const auto& each : losses) sum += each.size();
    return sum;
  }

  LanePtr lane;
  std::vector<std::vector<Message>> received;
  std::vector<std::vector<Status>> losses;
};

struct Self {
  Listening listening;
  Bootstrap& bootstrap;

  [[nodiscard]] ControlLane& lane() const { return *listening.lane; }
  void barrier() const { expect_ok(bootstrap.barrier(soon()), "barrier"); }
};

void on_every_kind(std::vector<int> sizes, const std::function<void(Self&)>& body) {
  for (const Kind& kind : kinds()) {
    for (const int size : sizes) {
      DYNAMIC_SECTION(kind.name << " with " << size << " ranks") {
        InprocHub hub(size);
        run_ranks(size, [&](int rank) {
          const auto bootstrap = hub.make_bootstrap(rank);
          Self self{Listening(kind.make(*bootstrap, hub)), *bootstrap};
          body(self);
        });
      }
    }
  }
}

}  // namespace

TEST_CASE("messages arrive whole, in order, from everyone to everyone") {
  on_every_kind(efforts({1, 2, 5}, {1, 3}), [](Self& self) {
    const std::array<std::size_t, 6> sizes{4, 5, 4096, 70'000, effort(1 << 20, 300'000), 4};
    for (std::uint32_t number = 0; number < sizes.size(); ++number) {
      for (int peer = 0; peer < self.lane().size(); ++peer) {
        self.lane().post(peer, numbered(sizes[number], number));
      }
    }
    for (int peer = 0; peer < self.lane().size(); ++peer) {
      self.listening.until([&] { return self.listening.count(peer) == sizes.size(); }, "messages");
      for (std::uint32_t number = 0; number < sizes.size(); ++number) {
        expect(self.listening.received[static_cast<std::size_t>(peer)][number] ==
                   numbered(sizes[number], number),
               str("message ", number, " of rank ", peer));
      }
    }
    // No barrier: close() sends what is queued for slower ranks.
    expect_ok(self.lane().close(soon()), "close");
    expect(self.listening.loss_count() == 0, "no loss");
  });
}

TEST_CASE("a message of no bytes is a message") {
  on_every_kind({2}, [](Self& self) {
    self.lane().post(1 - self.lane().rank(), {});
    self.listening.until([&] { return self.listening.count(1 - self.lane().rank()) == 1; }, "it");
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
}

TEST_CASE("a handler may answer") {
  on_every_kind({2}, [](Self& self) {
    const int peer = 1 - self.lane().rank();
    int rounds = 0;
    self.lane().on_message([&](int from, std::span<const std::byte> message) {
      ++rounds;
      if (rounds < 500) self.lane().post(from, {message.begin(), message.end()});
    });
    self.lane().post(peer, numbered(20, 1));
    self.listening.until([&] { return rounds >= 500; }, "answers");
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
}

TEST_CASE("good-bye is not loss, and what was said before it arrives") {
  on_every_kind({2, 4}, [](Self& self) {
    std::vector<int> all(static_cast<std::size_t>(self.lane().size()));
    std::iota(all.begin(), all.end(), 0);
    expect_ok(self.lane().connect(all, soon()), "connect");
    self.barrier();
    if (self.lane().rank() == 0) {
      for (std::size_t peer = 1; peer < all.size(); ++peer) {
        self.lane().post(all[peer], numbered(300'000, 7));
      }
      expect_ok(self.lane().close(soon()), "close");
      expect_ok(self.lane().close(soon()), "closing again");
    } else {
      self.listening.until([&] { return self.listening.count(0) == 1; }, "the last message");
    }
    self.barrier();
    self.listening.expect_quiet();
    self.lane().post(0, numbered(10, 1));  // dropped
    self.listening.expect_quiet();
    expect(self.listening.loss_count() == 0, "no loss");
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
}

TEST_CASE("the good-bye of a rank that never said anything is heard") {
  on_every_kind({2}, [](Self& self) {
    if (self.lane().rank() == 1) {
      expect_ok(self.lane().connect(std::array{0}, soon()), "connect");
      self.lane().post(0, numbered(100, 1));
    }
    self.barrier();
    if (self.lane().rank() == 0) expect_ok(self.lane().close(soon()), "close");
    self.barrier();
    self.listening.expect_quiet();
    expect(self.listening.loss_count() == 0, "no loss");
    expect_ok(self.lane().close(soon()), "close");
  });
}

TEST_CASE("a lane that is destroyed without good-bye is a loss, told once") {
  on_every_kind({3}, [](Self& self) {
    const int rank = self.lane().rank();
    std::array peers{(rank + 1) % 3, (rank + 2) % 3};
    expect_ok(self.lane().connect(peers, soon()), "connect");
    self.barrier();
    if (rank == 2) {
      self.lane().post(0, numbered(50'000, 3));
      self.listening.lane.reset();
      self.barrier();
      return;
    }
    auto& losses = self.listening.losses[2];
    self.listening.until([&] { return !losses.empty(); }, "the loss");
    self.lane().post(2, numbered(10, 1));
    self.listening.expect_quiet();
    expect(losses.size() == 1 && self.listening.loss_count() == 1, "one loss");
    expect(losses[0].code() == ErrorCode::peer_lost && losses[0].peer() == 2, "it names the peer");
    expect(losses[0].message() == "connection closed without good-bye", losses[0].to_string());
    expect(rank != 0 || self.listening.count(2) == 1, "what was sent before arrives first");
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
}

TEST_CASE("killing a rank of the hub cuts it off") {
  InprocHub hub(3);
  std::vector<std::unique_ptr<Listening>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Listening>(hub.make_control_lane(rank)));
  }
  hub.kill(1, "told to die");
  ranks[1]->lane->post(0, numbered(4, 1));
  for (const auto& rank : ranks) rank->expect_quiet();
  CHECK(ranks[0]->losses[1].size() == 1);
  CHECK(ranks[2]->losses[1].at(0).message() == "told to die");
  CHECK(ranks[1]->loss_count() == 2);
  CHECK(ranks[0]->count(1) == 0);
}

TEST_CASE("a process that is killed is lost, even while a child of it lives on") {
  for (const bool one_host : {true, false}) {
    DYNAMIC_SECTION((one_host ? "unix" : "tcp")) {
      InprocHub hub(2);
      LanePtr victim;
      LanePtr survivor;
      run_ranks(2, [&](int rank) {
        const auto bootstrap = hub.make_bootstrap(rank);
        (rank == 0 ? survivor : victim) = open_socket_lane(*bootstrap, one_host);
      });
      expect_ok(victim->connect(std::array{0}, soon()), "connect");
      expect_ok(survivor->connect(std::array{1}, soon()), "connect");
      std::array<int, 2> life{};  // ends with the grandchild
      REQUIRE(::pipe(life.data()) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        survivor->close_after_fork();
        if (::fork() == 0) {
          victim->close_after_fork();
          ::close(life[1]);
          char byte = 0;
          [[maybe_unused]] const auto got = ::read(life[0], &byte, 1);
          ::_exit(0);
        }
        ::raise(SIGKILL);
      }
      victim->close_after_fork();  // the child owns it now
      ::waitpid(child, nullptr, 0);
      Listening listening(std::move(survivor));
      listening.until([&] { return listening.loss_count() == 1; }, "the loss");
      CHECK(listening.losses[1].at(0).message() == "connection closed without good-bye");
      listening.expect_quiet();
      ::close(life[0]);
      ::close(life[1]);
    }
  }
}

TEST_CASE("foreign connections are rejected and harm nothing") {
  set_log_level(LogLevel::off);
  InprocHub hub(2);
  run_ranks(2, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    Self self{Listening(open_socket_lane(*bootstrap, true)), *bootstrap};
    if (rank == 0) {
      for (const std::string& words : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("rueda"),
                                       "ruedactl" + std::string(48, '\0')}) {
        auto fd = start_connecting(address_of_lane(*bootstrap, 1));
        expect_ok(fd.status(), "connecting");
        [[maybe_unused]] const auto sent =
            ::send(fd->get(), words.data(), words.size(), MSG_NOSIGNAL);
      }
      self.lane().post(1, numbered(10, 1));
    } else {
      self.listening.until([&] { return self.listening.count(0) == 1; }, "the friend's message");
      self.listening.expect_quiet();
      expect(self.listening.loss_count() == 0, "no loss");
    }
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
  set_log_level(LogLevel::warning);
}

TEST_CASE("connecting to a rank that is not there fails by name") {
  InprocHub hub(2);
  run_ranks(2, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    LanePtr lane = open_socket_lane(*bootstrap, true);
    if (rank == 1) lane.reset();
    expect_ok(bootstrap->barrier(soon()), "barrier");
    if (rank == 1) return;
    const Status status = lane->connect(std::array{1}, soon());
    expect(status.code() == ErrorCode::initialization && status.peer() == 1, status.to_string());
    expect(status.to_string().find("rank 1") != std::string::npos, status.to_string());
  });
}

TEST_CASE("closing towards a rank that does not read gives up at the deadline and names it") {
  InprocHub hub(2);
  run_ranks(2, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    Self self{Listening(open_socket_lane(*bootstrap, true)), *bootstrap};
    if (rank == 0) {
      self.lane().post(1, Message(16 << 20));
      const Status status = self.lane().close(Clock::now() + std::chrono::milliseconds(50));
      expect(status.code() == ErrorCode::timeout, status.to_string());
      expect(status.to_string().find("rank 1") != std::string::npos, status.to_string());
    }
    self.barrier();
    expect_ok(self.lane().close(soon()), "close");
  });
}

}  // namespace rueda::test::control_lane_test
