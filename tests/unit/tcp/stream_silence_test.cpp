// When a stream counts as silent, so that its data in flight moves to other streams.
#include "tcp/stream_silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "core/wait_fd.h"
#include "ranks/rank_threads.h"
#include "tcp/incoming_stream.h"
#include "tcp/outgoing_stream.h"
#include "transport/socket.h"

namespace rueda::test::stream_silence_test {

namespace {

using namespace std::chrono_literals;

constexpr Duration timeout = 150ms;

}  // namespace

TEST_CASE("a stream is silent once an answer is due for long") {
  StreamAnswers answers{true, 200ms, 200ms, 100us, 0ms};
  CHECK(silence_of(answers, timeout) == StreamSilence::silent);
  answers.since_last = 100ms;
  CHECK(silence_of(answers, timeout) == StreamSilence::answered);
}

TEST_CASE("what was written after a pause makes no stream silent at once") {
  const StreamAnswers answers{true, 10s, 1ms, 100us, 0ms};
  CHECK(silence_of(answers, timeout) == StreamSilence::answered);
}

TEST_CASE("a stream on which nothing is under way is idle, however long ago the last answer was") {
  const StreamAnswers answers{false, 10s, 10s, 100us, 0ms};
  CHECK(silence_of(answers, timeout) == StreamSilence::idle);
}

TEST_CASE("TCP has the time to send again what was lost") {
  StreamAnswers answers{true, 300ms, 300ms, 100us, 201ms};
  CHECK(silence_of(answers, timeout) == StreamSilence::answered);
  answers.since_last = answers.since_first_due = 410ms;
  CHECK(silence_of(answers, timeout) == StreamSilence::silent);
  answers.round_trip = 150ms;
  CHECK(silence_of(answers, timeout) == StreamSilence::answered);
}

namespace {

// Both ends of a TCP connection.
std::array<UniqueFd, 2> connected() {
  auto listener = listen_on("tcp:127.0.0.1:0");
  REQUIRE(listener.ok());
  auto near = start_connecting(listener->address);
  REQUIRE(near.ok());
  wait_readable(listener->fd.get(), soon());
  UniqueFd far = accept_from(listener->fd.get()).fd;
  REQUIRE(far);
  return {std::move(near).value(), std::move(far)};
}

}  // namespace

TEST_CASE("a stream that had nothing to carry for a while is answered") {
  const Key key("secret of the world");
  const Handshake calling("ruedatcp", key, 0, 2);
  const Handshake called("ruedatcp", key, 1, 2);
  OutgoingMessages out(1);
  IncomingMessages in(0);
  auto [near, far] = connected();
  const int far_fd = far.get();
  OutgoingStream sender(calling, key, 1, std::move(near));
  sender.mark_ready(EPOLLOUT);
  REQUIRE(sender.read(out).ok());
  SocketLink link(std::move(far), false);
  for (const Time deadline = soon(); link.inbox().size() < Handshake::hello_bytes;) {
    REQUIRE(wait_readable(far_fd, deadline));
    REQUIRE(link.read(Handshake::hello_bytes - link.inbox().size()).ok());
  }
  link.consume(Handshake::hello_bytes);
  link.enqueue(frame_of(FrameKind::welcome, called.welcome_to(0)));
  REQUIRE(link.write().ok());
  IncomingStream receiver(key, 1, 0, std::move(link));
  const std::vector<std::byte> bytes(100, std::byte{7});
  std::vector<std::byte> received(bytes.size());
  bool silent = false;
  const auto carry_one = [&] {
    const Ticket ticket = in.recv({.sequence = 3}, std::array{MutableBytes(received)});
    out.send({.sequence = 3}, std::array{ConstBytes(bytes)});
    for (const Time deadline = soon(); !ticket->done;) {
      REQUIRE(Clock::now() < deadline);
      sender.mark_ready(EPOLLIN | EPOLLOUT);
      REQUIRE(sender.read(out).ok());
      if (sender.is_open()) REQUIRE(sender.write(out, bytes.size(), Clock::now()).ok());
      silent = silent || sender.silence(timeout, Clock::now()) == StreamSilence::silent;
      receiver.mark_ready(EPOLLIN);
      REQUIRE(receiver.read(in).status.ok());
    }
  };
  for (int round = 0; round < 5; ++round) {
    // Delayed ACKs, as over a network.
    const int off = 0;
    ::setsockopt(far_fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off);
    carry_one();
    std::this_thread::sleep_for(450ms);  // longer than this stream's silence limit
  }
  CHECK_FALSE(silent);
  CHECK(received == bytes);
}

}  // namespace rueda::test::stream_silence_test
