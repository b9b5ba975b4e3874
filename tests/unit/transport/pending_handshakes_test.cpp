// A connection with a valid hello becomes a peer, and no other does; the cost of all others is
// bounded.
#include "transport/pending_handshakes.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/wait_fd.h"
#include "ranks/rank_threads.h"

namespace rueda::test::pending_handshakes_test {

namespace {

using Bytes = std::vector<std::byte>;

constexpr int size = 3;

Handshake rank_of_world(int rank) {
  return {"ruedates", Key("the world's key"), rank, size};
}

// Rank 0, which accepts connections, and the peers that it has admitted.
struct Called {
  explicit Called(Duration timeout = handshake_timeout) {
    set_log_level(LogLevel::off);
    auto listener = listen_on("unix:@rueda-test-" + random_name());
    REQUIRE(listener.ok());
    address = listener.value().address;
    std::vector<Listener> listeners;
    listeners.push_back(std::move(listener).value());
    pending.emplace("a test", handshake, std::move(listeners),
                    PendingHandshakes::Owner{
                        [this](int peer, std::uint64_t) { return unexpected.count(peer) == 0; },
                        [this](int peer, std::uint64_t, SocketLink link) {
                          REQUIRE(admitted.count(peer) == 0);
                          admitted.emplace(peer, std::move(link));
                        }},
                    timeout);
    REQUIRE(pending->open());
  }
  ~Called() { set_log_level(LogLevel::warning); }
  Called(const Called&) = delete;
  Called& operator=(const Called&) = delete;

  // A connection over which `begin` was sent and processed.
  [[nodiscard]] UniqueFd call(const Bytes& begin) {
    auto fd = start_connecting(address);
    REQUIRE(fd.ok());
    say(fd.value(), begin);
    return std::move(fd).value();
  }
  void say(const UniqueFd& fd, std::span<const std::byte> bytes) {
    REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
    settle();
  }
  void settle() {
    const Time deadline = soon();
    while (wait_readable(pending->wait_fd(), Clock::now())) {
      REQUIRE(Clock::now() < deadline);
      pending->progress();
    }
  }

  const Handshake handshake = rank_of_world(0);
  std::string address;
  std::set<int> unexpected;
  std::map<int, SocketLink> admitted;
  std::optional<PendingHandshakes> pending;
};

bool is_closed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, 0);
  return got == 0 || (got < 0 && errno != EAGAIN);
}
// The frame that the caller has received, and whether the stream ended after it.
struct Answer {
  FrameKind kind;
  Bytes payload;
  bool has_ended;
};
Answer answer_to(UniqueFd fd) {
  SocketLink link(std::move(fd), false);
  const Status status = link.read();
  const auto frame = link.next_frame();
  REQUIRE(frame.ok());
  REQUIRE(frame.value());
  const auto payload = frame.value()->payload;
  return {frame.value()->kind, Bytes(payload.begin(), payload.end()), !status.ok()};
}

}  // namespace

TEST_CASE("a rank that proves who it is is welcomed, and no more than its hello is read") {
  Called called;
  Bytes bytes = rank_of_world(2).hello_to(0);
  const Bytes more(1000, std::byte{7});
  bytes.insert(bytes.end(), more.begin(), more.end());
  UniqueFd fd = called.call(bytes);
  REQUIRE(called.admitted.count(2) == 1);
  SocketLink& link = called.admitted.at(2);
  CHECK(link.inbox().empty());
  CHECK(link.read().ok());
  CHECK(link.inbox().size() == more.size());
  const Answer answer = answer_to(std::move(fd));
  CHECK(answer.kind == FrameKind::welcome);
  CHECK(rank_of_world(2).is_welcome_of(0, answer.payload));
  CHECK_FALSE(answer.has_ended);
}

TEST_CASE("a hello that comes in pieces is waited for") {
  const std::size_t cut = GENERATE(range(std::size_t{1}, Handshake::hello_bytes));
  Called called;
  const Bytes hello = rank_of_world(1).hello_to(0);
  const std::span<const std::byte> bytes(hello);
  const UniqueFd fd = called.call({});
  called.say(fd, bytes.first(cut));
  CHECK(called.admitted.empty());
  CHECK_FALSE(is_closed(fd));
  called.say(fd, bytes.subspan(cut));
  CHECK(called.admitted.count(1) == 1);
}

TEST_CASE("whoever says what no expected rank says is rejected") {
  Called called;
  Bytes altered = rank_of_world(1).hello_to(0);
  altered.back() ^= std::byte{1};
  called.unexpected = {2};
  for (const Bytes& said : {altered, rank_of_world(1).hello_to(2), rank_of_world(2).hello_to(0)}) {
    CHECK(is_closed(called.call(said)));
  }
  CHECK(called.admitted.empty());
  const UniqueFd fd = called.call(rank_of_world(1).hello_to(0));
  CHECK(called.admitted.count(1) == 1);
}

TEST_CASE("a connection that ends before its hello is forgotten") {
  Called called;
  for (int i = 0; i < 200; ++i) {
    UniqueFd fd = called.call({std::byte{'r'}});
    fd.reset();
    called.settle();  // the end of the stream does not wake it again and again
  }
  CHECK(called.admitted.empty());
}

TEST_CASE("only so many handshakes are pending, and the oldest makes room") {
  Called called;
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < max_strangers; ++i) silent.push_back(called.call({}));
  for (const UniqueFd& fd : silent) CHECK_FALSE(is_closed(fd));
  const UniqueFd next = called.call({});
  CHECK(is_closed(silent[0]));
  CHECK_FALSE(is_closed(silent[1]));
  CHECK_FALSE(is_closed(next));
  // A rank among them is still admitted, and frees its place.
  called.say(silent[1], rank_of_world(1).hello_to(0));
  CHECK(called.admitted.count(1) == 1);
  const UniqueFd another = called.call({});
  CHECK_FALSE(is_closed(silent[2]));
}

TEST_CASE("who says nothing is rejected in time, though nobody else comes") {
  Called called(std::chrono::milliseconds(50));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(called.call({std::byte{'r'}}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Time deadline = soon();
  for (const UniqueFd& fd : silent) {
    while (!is_closed(fd)) {
      REQUIRE(wait_readable(called.pending->wait_fd(), deadline));
      called.pending->progress();
    }
  }
  // Nothing is pending any more.
  CHECK_FALSE(wait_readable(called.pending->wait_fd(), Clock::now() + seconds(0.2)));
}

TEST_CASE("what has been said but not been read is taken into account by catching up") {
  Called called;
  auto fd = start_connecting(called.address);
  REQUIRE(fd.ok());
  const Bytes hello = rank_of_world(1).hello_to(0);
  REQUIRE(::send(fd.value().get(), hello.data(), hello.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(hello.size()));
  called.pending->catch_up();
  CHECK(called.admitted.count(1) == 1);
}

TEST_CASE("who is pending when a rank leaves hears its good-bye, and nobody can come any more") {
  Called called;
  UniqueFd fd = called.call({});
  called.pending->close();
  const Answer answer = answer_to(std::move(fd));
  CHECK(answer.kind == FrameKind::good_bye);
  CHECK(rank_of_world(1).is_good_bye_of(0, answer.payload));
  CHECK_FALSE(rank_of_world(1).is_good_bye_of(2, answer.payload));
  CHECK(answer.has_ended);
  CHECK_FALSE(start_connecting(called.address).ok());
}

}  // namespace rueda::test::pending_handshakes_test
