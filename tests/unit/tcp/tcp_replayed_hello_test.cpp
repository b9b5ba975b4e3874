// An attacker that overhears a stream's hello can replay it, but gains nothing.
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <vector>

#include "tcp/tcp_peer.h"

namespace rueda::test::tcp_replayed_hello_test {

namespace {

constexpr std::size_t room = 2 * StreamCount::max_streams;
const Key world("the key of this world");
const Key streams("the key of its streams");

// Rank 0, receiving from rank 1. open() returns the other end of a new stream.
struct Called {
  Called() { REQUIRE(watched.open()); }

  UniqueFd open() {
    REQUIRE(peer.expects_stream());
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    peer.admit(SocketLink(UniqueFd(fds[0]), false));
    step(Clock::now());
    return UniqueFd(fds[1]);
  }
  void step(Time now) {
    watched.for_each_ready(
        [this](const auto& event) { peer.mark_ready(event.source, event.index, event.events); });
    peer.progress(now);
  }
  // Answers the challenge as rank 1 would.
  void prove(const UniqueFd& fd) {
    std::array<std::byte, frame_header_bytes + StreamOpening::challenge_bytes> challenge{};
    REQUIRE(::recv(fd.get(), challenge.data(), challenge.size(), 0) ==
            static_cast<ssize_t>(challenge.size()));
    const auto answer = frame_of(
        FrameKind::message,
        StreamOpening(streams, 1, 0).answer(std::span(challenge).subspan(frame_header_bytes)));
    REQUIRE(::send(fd.get(), answer.data(), answer.size(), 0) ==
            static_cast<ssize_t>(answer.size()));
    step(Clock::now());
  }

  const Handshake handshake{"ruedatcp", world, 0, 2};
  EpollSet<TcpWatched> watched;
  Time next_call = Time::max();
  const TcpPeer::Context context{
      0, handshake, streams, watched, [this](Time time) { next_call = std::min(next_call, time); },
      {}};
  TcpPeer peer{1, {"unix:@nowhere"}, context};
};

bool is_closed(const UniqueFd& fd) {
  std::array<std::byte, 256> bytes;
  ssize_t got = 0;
  while ((got = ::recv(fd.get(), bytes.data(), bytes.size(), 0)) > 0) {
  }
  return got == 0 || errno != EAGAIN;
}

}  // namespace

TEST_CASE("streams that prove nothing keep none of the peer's out") {
  Called called;
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < room; ++i) silent.push_back(called.open());
  CHECK_FALSE(is_closed(silent.front()));
  const UniqueFd proved = called.open();
  called.prove(proved);
  CHECK(is_closed(silent.front()));
  CHECK_FALSE(is_closed(silent[1]));
  // An authenticated stream is never evicted.
  for (std::size_t i = 0; i < 3 * room; ++i) silent.push_back(called.open());
  CHECK_FALSE(is_closed(proved));
}

TEST_CASE("no more streams are taken than are open at once") {
  Called called;
  std::vector<UniqueFd> open;
  for (std::size_t i = 0; i < room; ++i) {
    open.push_back(called.open());
    called.prove(open.back());
  }
  CHECK_FALSE(called.peer.expects_stream());
  for (const UniqueFd& fd : open) CHECK_FALSE(is_closed(fd));
}

TEST_CASE("a stream that proves nothing is closed in time") {
  Called called;
  const UniqueFd silent = called.open();
  const UniqueFd proved = called.open();
  called.prove(proved);
  REQUIRE(called.next_call != Time::max());
  called.step(called.next_call);
  CHECK(is_closed(silent));
  CHECK_FALSE(is_closed(proved));
}

}  // namespace rueda::test::tcp_replayed_hello_test
