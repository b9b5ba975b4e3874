// Behaviour specific to TCP links: broken streams and unauthenticated peers. See
// transport_conformance_test.cpp for behaviour common to all transports.
#include "tcp/tcp_transport.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <charconv>
#include <optional>
#include <thread>

#include "effort.h"
#include "ranks/transport_conformance.h"
#include "tcp/incoming_stream.h"
#include "tcp/outgoing_stream.h"
#include "transport/inproc.h"
#include "transport/socket.h"
#include "unit/contains.h"
#include "unit/no_descriptors.h"

namespace rueda::test::tcp_transport_test {

namespace {

using namespace std::chrono_literals;

template <class T>
T value_of(Expected<T> expected, const std::string& what) {
  expect_ok(expected.status(), what);
  return std::move(expected).value();
}

std::unique_ptr<Transport> transport_of(InprocHub& hub, int rank) {
  return value_of(open_tcp_transport(*hub.make_bootstrap(rank), "127.0.0.1", soon()), "links");
}

// Connected sockets of this process, including both ends of each stream.
std::vector<int> connected_sockets() {
  std::vector<int> found;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* const entry = ::readdir(folder)) {
    const std::string_view name(entry->d_name);
    int fd = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec != std::errc()) continue;
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    if (connected && peer.ss_family == AF_INET) found.push_back(fd);
  }
  ::closedir(folder);
  return found;
}

// Breaks a stream now and then, as a network or a firewall may.
class Breaker {
 public:
  ~Breaker() { stop(); }
  int stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return broken_;
  }

 private:
  void run() {
    std::mt19937 random(1);
    while (!stopping_) {
      std::this_thread::sleep_for(30ms);
      const std::vector<int> sockets = connected_sockets();
      if (sockets.empty()) continue;
      if (::shutdown(sockets[random() % sockets.size()], SHUT_RDWR) == 0) ++broken_;
    }
  }

  std::atomic<bool> stopping_{false};
  int broken_ = 0;
  std::thread thread_{[this] { run(); }};
};

// Like a rank running a collective: drives progress until all ranks are through.
void drive(Transport& transport, Bootstrap& bootstrap, std::atomic<int>& through) {
  ++through;
  await([&] { return static_cast<void>(transport.progress()), through == bootstrap.size(); },
        "all are through");
}

}  // namespace

TEST_CASE("streams that break lose nothing") {
  constexpr int size = 3;
  constexpr std::uint32_t rounds = effort(40, 20);
  InprocHub hub(size);
  std::atomic<int> through{0};
  Breaker breaker;
  run_ranks(size, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const auto transport = transport_of(hub, rank);
    const int right = (rank + 1) % size;
    const int left = (rank + size - 1) % size;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
        const auto seed = [&](int from) { return round * size + static_cast<std::uint32_t>(from); };
        const Bytes sent = pattern(bytes, seed(rank));
        Bytes received(bytes);
        const Ticket in =
            transport->recv(left, {.sequence = 1}, std::array{MutableBytes(received)});
        const Ticket out = transport->send(right, {.sequence = 1}, std::array{ConstBytes(sent)});
        expect_ok(wait_for(*transport, in), "receiving");
        expect_ok(wait_for(*transport, out), "sending");
        expect(same(received, pattern(bytes, seed(left))), "bytes over streams that break");
      }
    }
    drive(*transport, *bootstrap, through);
  });
  CHECK(breaker.stop() > 3);
}

TEST_CASE("a peer that cannot be reached any more fails, named with its address") {
  InprocHub hub(2);
  std::unique_ptr<Transport> survivor;
  run_ranks(2, [&](int rank) {
    auto transport = transport_of(hub, rank);
    if (rank == 0) survivor = std::move(transport);
  });
  const Bytes bytes = pattern(1 << 20, 1);
  const Ticket out = survivor->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
  const Status status = wait_for(*survivor, out);
  CHECK(status.code() == ErrorCode::peer_lost);
  CHECK(status.details().reason == ErrorReason::unreachable);
  CHECK(status.peer() == 1);
  CHECK(contains(status, "rank 0 cannot reach rank 1 at tcp:127.0.0.1:"));
  CHECK(contains(status, "refused"));
}

TEST_CASE("in a world that ends in good order, what a peer that has left cannot take has arrived") {
  InprocHub hub(2);
  std::unique_ptr<Transport> survivor;
  run_ranks(2, [&](int rank) {
    auto transport = transport_of(hub, rank);
    if (rank == 0) survivor = std::move(transport);
  });
  const Bytes bytes = pattern(1 << 20, 1);
  const bool is_known_before = GENERATE(true, false);
  if (is_known_before) survivor->end_in_order();
  const Ticket out = survivor->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
  survivor->progress();
  survivor->end_in_order();
  expect_ok(wait_for(*survivor, out), "sending");
}

TEST_CASE("a rank that leaves sends again what a broken stream has lost") {
  InprocHub hub(2);
  std::array<std::unique_ptr<Transport>, 2> ranks;
  run_ranks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = transport_of(hub, rank); });
  const auto progress = [&] {
    for (const auto& rank : ranks) {
      if (rank) rank->progress();
    }
  };
  const std::vector<int> others = connected_sockets();
  const Bytes bytes = pattern(8 << 10, 1);
  Bytes received(bytes.size());
  for (const unsigned tag : {1U, 2U}) {
    const Ticket in = ranks[1]->recv(0, {.sequence = tag}, std::array{MutableBytes(received)});
    const Ticket out = ranks[0]->send(1, {.sequence = tag}, std::array{ConstBytes(bytes)});
    if (tag == 1) {
      await([&] { return progress(), in->done && out->done; }, "the stream is open");
      continue;
    }
    await([&] { return static_cast<void>(ranks[0]->progress()), out->done; }, "it has left");
    for (const int fd : connected_sockets()) {  // drops received but unread data as well
      if (std::ranges::find(others, fd) != others.end()) continue;
      const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
      ::connect(fd, &none, sizeof none);
    }
    std::thread leaving([&] { ranks[0].reset(); });
    try {
      await([&] { return static_cast<void>(ranks[1]->progress()), in->done; }, "it has come");
    } catch (...) {
      leaving.join();
      throw;
    }
    leaving.join();
    expect_ok(in->status, "receiving");
    CHECK(same(received, bytes));
  }
}

TEST_CASE("what has arrived is read to its end by a rank that has nothing in flight") {
  InprocHub hub(2);
  std::array<std::unique_ptr<Transport>, 2> ranks;
  run_ranks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = transport_of(hub, rank); });
  const Bytes posted = pattern(8 << 10, 1);
  const Bytes unposted = pattern(16 << 20, 2);
  Bytes received(posted.size());
  const Ticket in = ranks[1]->recv(0, {.sequence = 1}, std::array{MutableBytes(received)});
  const Ticket out = ranks[0]->send(1, {.sequence = 1}, std::array{ConstBytes(posted)});
  const Ticket more = ranks[0]->send(1, {.sequence = 2}, std::array{ConstBytes(unposted)});
  const auto is_readable = [](int fd) {
    pollfd watched{fd, POLLIN, 0};
    return ::poll(&watched, 1, 0) == 1;
  };
  const auto reads_more = [&] {
    for (const auto& rank : ranks) rank->progress();
    return in->done && ranks[1]->has_work();
  };
  await(reads_more, "the second message is being kept");
  // Ends before a silent receiver is asked for receipts, which would resume its reading.
  int idle = 0;
  while (!more->done && idle < 500) {
    ranks[0]->progress();
    const bool is_woken = is_readable(ranks[1]->wait_fd()) || ranks[1]->has_work();
    if (is_woken) ranks[1]->progress();
    idle = is_woken ? 0 : idle + 1;
    if (!is_woken) std::this_thread::sleep_for(1ms);
  }
  CHECK(out->done);
  CHECK(more->done);
  CHECK_FALSE(ranks[1]->has_work());
}

TEST_CASE("a rank that has no descriptor for a stream opens it later") {
  InprocHub hub(2);
  std::array<std::unique_ptr<Transport>, 2> ranks;
  run_ranks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = transport_of(hub, rank); });
  const Bytes bytes = pattern(1 << 20, 1);
  Bytes received(bytes.size());
  std::optional<NoDescriptors> none(std::in_place);
  const Ticket out = ranks[0]->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
  const Ticket in = ranks[1]->recv(0, {.sequence = 1}, std::array{MutableBytes(received)});
  const auto progress = [&] {
    for (const auto& rank : ranks) rank->progress();
  };
  // Long enough for several attempts.
  for (const Time until = Clock::now() + 500ms; Clock::now() < until;) progress();
  CHECK_FALSE(out->done);
  none.reset();
  await([&] { return progress(), in->done && out->done; }, "the message has come");
  expect_ok(out->status, "sending");
  CHECK(same(received, bytes));
}

TEST_CASE("a second stream is tried only where many descriptors are left") {
  const bool are_few = GENERATE(false, true);
  InprocHub hub(2);
  std::array<std::unique_ptr<Transport>, 2> ranks;
  run_ranks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = transport_of(hub, rank); });
  const Bytes bytes = pattern(8 << 20, 1);
  Bytes received(bytes.size());
  const std::size_t before = connected_sockets().size();
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const rlimit few{static_cast<rlim_t>(next.get()) + 32, limit.rlim_max};
  if (are_few) REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const std::size_t ends_of_one = 2;
  const auto has_more = [&] { return connected_sockets().size() > before + ends_of_one; };
  for (int round = 0; round < (are_few ? 100 : 10'000) && !has_more(); ++round) {
    const Ticket in = ranks[1]->recv(0, {.sequence = 1}, std::array{MutableBytes(received)});
    const Ticket out = ranks[0]->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
    for (const Time deadline = soon(); !in->done || !out->done;) {
      expect(Clock::now() < deadline, "the message has come");
      for (const auto& rank : ranks) rank->progress();
    }
    expect_ok(out->status, "sending");
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(has_more() != are_few);
  CHECK(same(received, bytes));
}

TEST_CASE("a rank that has no descriptor for long says so, and blames itself") {
  InprocHub hub(2);
  std::array<std::unique_ptr<Transport>, 2> ranks;
  run_ranks(2, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = transport_of(hub, rank); });
  const NoDescriptors none;
  const Bytes bytes = pattern(1 << 20, 1);
  const Ticket out = ranks[0]->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
  const Status status = wait_for(*ranks[0], out);
  CHECK(status.peer() == 0);
  CHECK(contains(status, "Too many open files"));
}

namespace {

constexpr std::string_view protocol = "ruedatcp";

// The two ends of a stream from rank 0 to rank 1, driven step by step.
struct Ends {
  Key key{"secret of the world"};
  Handshake calling{protocol, key, 0, 2};
  Handshake called{protocol, key, 1, 2};
  OutgoingMessages out{1};
  IncomingMessages in{0};
  UniqueFd near;
  UniqueFd far;

  Ends() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  // The accepting end, after it has read the hello and sent the welcome.
  SocketLink welcomed() {
    SocketLink link(std::move(far), false);
    REQUIRE(link.read(Handshake::hello_bytes).ok());
    link.consume(Handshake::hello_bytes);
    link.enqueue(frame_of(FrameKind::welcome, called.welcome_to(0)));
    REQUIRE(link.write().ok());
    return link;
  }
};

}  // namespace

TEST_CASE("a stream opens, carries and is acknowledged") {
  Ends ends;
  OutgoingStream sender(ends.calling, ends.key, 1, std::move(ends.near));
  sender.mark_ready(EPOLLOUT);
  REQUIRE(sender.read(ends.out).ok());
  IncomingStream receiver(ends.key, 1, 0, ends.welcomed());
  const Bytes bytes = pattern(100'000, 1);
  const Ticket out = ends.out.send({.sequence = 3}, std::array{ConstBytes(bytes)});
  Bytes received(bytes.size());
  const Ticket in = ends.in.recv({.sequence = 3}, std::array{MutableBytes(received)});
  for (int turn = 0; turn < 50 && !out->done; ++turn) {
    sender.mark_ready(EPOLLIN | EPOLLOUT);
    receiver.mark_ready(EPOLLIN);
    REQUIRE(sender.read(ends.out).ok());
    if (sender.is_open()) REQUIRE(sender.write(ends.out, 30'000, Clock::now()).ok());
    REQUIRE(receiver.read(ends.in).status.ok());
    if (receiver.owes()) receiver.send_receipt();
  }
  CHECK(out->done);
  CHECK(in->done);
  CHECK(received == bytes);
  CHECK(sender.delivered() == bytes.size());
}

TEST_CASE("a chunk that comes before its receive waits a turn for it, and is then kept") {
  const bool is_posted_in_time = GENERATE(true, false);
  Ends ends;
  OutgoingStream sender(ends.calling, ends.key, 1, std::move(ends.near));
  sender.mark_ready(EPOLLOUT);
  REQUIRE(sender.read(ends.out).ok());
  IncomingStream receiver(ends.key, 1, 0, ends.welcomed());
  const auto receive = [&] {
    receiver.mark_ready(EPOLLIN);
    REQUIRE(receiver.read(ends.in).status.ok());
  };
  const auto unread = [&] {
    int bytes = 0;
    REQUIRE(::ioctl(receiver.fd(), FIONREAD, &bytes) == 0);
    return bytes;
  };
  constexpr std::size_t chunk = 30'000;
  const auto send_chunk = [&] {
    sender.mark_ready(EPOLLIN | EPOLLOUT);
    REQUIRE(sender.read(ends.out).ok());
    if (sender.is_open()) REQUIRE(sender.write(ends.out, chunk, Clock::now()).ok());
  };
  for (int turn = 0; turn < 50 && !sender.is_open(); ++turn) {
    send_chunk();
    receive();
  }
  REQUIRE(sender.is_open());
  const Bytes bytes = pattern(2'000'000, 1);  // more than the socket takes at once
  const Ticket out = ends.out.send({.sequence = 3}, std::array{ConstBytes(bytes)});
  Bytes received(bytes.size());
  Ticket in;
  const auto post = [&] { in = ends.in.recv({.sequence = 3}, std::array{MutableBytes(received)}); };
  send_chunk();
  receive();
  CHECK(unread() > 0);
  CHECK(receiver.is_readable());
  if (is_posted_in_time) post();
  receive();
  CHECK(unread() == 0);
  if (!is_posted_in_time) post();
  const auto first = std::span(received).first(chunk);
  CHECK(std::equal(first.begin(), first.end(), bytes.begin()) == is_posted_in_time);
  for (int turn = 0; turn < 500 && !in->done; ++turn) {
    send_chunk();
    receive();
    if (receiver.owes()) receiver.send_receipt();
  }
  CHECK(in->done);
  CHECK(in->status.ok());
  CHECK(received == bytes);
}

TEST_CASE("a receipt that has not come is asked for, between chunks") {
  Ends ends;
  OutgoingStream sender(ends.calling, ends.key, 1, std::move(ends.near));
  sender.mark_ready(EPOLLOUT);
  REQUIRE(sender.read(ends.out).ok());
  IncomingStream receiver(ends.key, 1, 0, ends.welcomed());
  const Bytes bytes = pattern(2 * OutgoingMessages::max_copied_bytes, 1);
  Bytes received(bytes.size());
  const auto turn = [&] {
    sender.mark_ready(EPOLLIN | EPOLLOUT);
    receiver.mark_ready(EPOLLIN);
    REQUIRE(sender.read(ends.out).ok());
    if (sender.is_open()) REQUIRE(sender.write(ends.out, bytes.size(), Clock::now()).ok());
    REQUIRE(receiver.read(ends.in).status.ok());
  };
  for (int round = 0; round < 3; ++round) {
    const Ticket out = ends.out.send({.sequence = 3}, std::array{ConstBytes(bytes)});
    const Ticket in = ends.in.recv({.sequence = 3}, std::array{MutableBytes(received)});
    for (int count = 0; count < 50 && !in->done; ++count) turn();
    REQUIRE(in->done);
    CHECK(sender.awaits_receipt());
    CHECK_FALSE(receiver.is_asked());
    REQUIRE(sender.ask_for_receipt(Clock::now()).ok());
    turn();
    CHECK(receiver.is_asked());
    CHECK_FALSE(out->done);
    receiver.send_receipt();
    CHECK_FALSE(receiver.is_asked());
    turn();
    CHECK(out->done);
    CHECK_FALSE(sender.awaits_receipt());
  }
  CHECK(received == bytes);
}

TEST_CASE("who has heard a stream being opened cannot open one") {
  const auto opening_of = [](Ends& ends) {  // all that the opener sends before it is accepted
    OutgoingStream sender(ends.calling, ends.key, 1, std::move(ends.near));
    sender.mark_ready(EPOLLOUT);
    REQUIRE(sender.read(ends.out).ok());
    SocketLink link = ends.welcomed();
    StreamOpening opening(ends.key, 0, 1);
    link.enqueue(frame_of(FrameKind::message, opening.challenge()));
    REQUIRE(link.write().ok());
    sender.mark_ready(EPOLLIN);
    REQUIRE(sender.read(ends.out).ok());
    REQUIRE(link.read().ok());
    const auto heard = link.inbox();
    return Bytes(heard.begin(), heard.end());
  };
  Ends first;
  const Bytes heard = opening_of(first);
  Ends second;
  REQUIRE(::send(second.near.get(), heard.data(), heard.size(), 0) ==
          static_cast<ssize_t>(heard.size()));
  IncomingStream receiver(second.key, 1, 0, SocketLink(std::move(second.far), false));
  const auto progress = receiver.read(second.in);
  CHECK(contains(progress.status, "without a valid proof"));
  CHECK_FALSE(progress.is_peers_fault);
  CHECK_FALSE(receiver.is_open());
}

TEST_CASE("strangers neither join nor keep ranks from talking") {
  constexpr int size = 2;
  InprocHub hub(size);
  std::atomic<bool> over{false};
  std::atomic<int> ports{0};
  std::array<std::atomic<int>, size> listening{};
  // Connects to every listening port of this process and sends nothing, noise or half a hello.
  std::thread stranger([&] {
    std::mt19937 random(7);
    while (!over) {
      for (const auto& port : listening) {
        if (port == 0) continue;
        auto fd = start_connecting(join_tcp("127.0.0.1", port));
        if (!fd) continue;
        (void)wait_writable(fd->get(), soon());
        std::string noise(random() % 100, 'x');
        if (random() % 2 == 0) noise = "ruedatcp" + noise;
        [[maybe_unused]] const auto sent =
            ::send(fd->get(), noise.data(), noise.size(), MSG_NOSIGNAL);
        ++ports;
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  run_ranks(size, [&](int rank) {
    const std::vector<int> before = connected_sockets();
    const auto bootstrap = hub.make_bootstrap(rank);
    const auto transport = transport_of(hub, rank);
    const std::string told = value_of(bootstrap->get(str("tcp/", rank)), "the address");
    const auto colon = told.rfind(':');  // followed by the port
    listening[static_cast<std::size_t>(rank)] = std::stoi(told.substr(colon + 1));
    const int peer = 1 - rank;
    for (std::uint32_t round = 0; round < 60; ++round) {
      const Bytes sent = pattern(300'000, round);
      Bytes received(sent.size());
      const Ticket in = transport->recv(peer, {.sequence = 1}, std::array{MutableBytes(received)});
      const Ticket out = transport->send(peer, {.sequence = 1}, std::array{ConstBytes(sent)});
      expect_ok(wait_for(*transport, in), "receiving");
      expect_ok(wait_for(*transport, out), "sending");
      expect(same(received, sent), "bytes beside strangers");
      if (round % 8 == 0) std::this_thread::sleep_for(2ms);
    }
    expect_ok(bootstrap->barrier(soon()), "barrier");
  });
  over = true;
  stranger.join();
  CHECK(ports > 10);
}

}  // namespace rueda::test::tcp_transport_test
