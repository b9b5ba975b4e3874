// Connections that do not come from ranks of the job: from other users, without the job's secret,
// or silent. They get no data and do no harm.
#include <fcntl.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/limited_log.h"
#include "core/log.h"
#include "core/wait_fd.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/rendezvous_store.h"
#include "ranks/rank_threads.h"
#include "transport/control_socket.h"
#include "transport/descriptors.h"
#include "transport/handshake.h"
#include "transport/inproc.h"
#include "transport/key.h"
#include "transport/socket.h"
#include "transport/socket_link.h"
#include "unit/child_process.h"
#include "unit/contains.h"

namespace rueda::test::stranger_test {

namespace {

using Verb = RendezvousWords::Verb;
constexpr uid_t nobody = 65534;
const std::string secret = "a secret that these ranks were given";

std::string fresh_unix() {
  return "unix:@rueda-test-" + random_name();
}
// An address with a port that was just free.
std::string fresh_tcp() {
  const auto listener = listen_on("tcp:127.0.0.1:0");
  REQUIRE(listener.ok());
  return listener.value().address;
}

// Silences the warnings that these connections cause.
struct Silence {
  Silence() { set_log_level(LogLevel::off); }
  ~Silence() { set_log_level(LogLevel::warning); }
};

// Whether `body` succeeds in a process of another user. Requires root.
bool succeeds_as_nobody(const std::function<void()>& body) {
  return exit_code_of([&] {
           expect(::setgroups(0, nullptr) == 0 && ::setresgid(nobody, nobody, nobody) == 0 &&
                      ::setresuid(nobody, nobody, nobody) == 0,
                  "becoming another user");
           body();
         }) == 0;
}
bool can_become_another_user() {
  if (::geteuid() == 0) return true;
  WARN("skipped: only root can become another user");
  return false;
}

// Connects without checking who listens, which a rank would do.
UniqueFd connect_blindly(const std::string& address) {
  const AbstractAddress name(address.substr(std::strlen("unix:@")));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  expect(::connect(fd.get(), name.get(), name.length) == 0, "connecting blindly");
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return fd;
}
UniqueFd connect_to(const std::string& address) {
  auto fd = start_connecting(address);
  expect_ok(fd.status(), "connecting");
  expect(wait_writable(fd->get(), soon()), "a connection");
  return std::move(fd).value();
}

// Whether the other side closes the connection by the deadline.
bool is_closed(int fd, Time deadline) {
  std::array<char, 4096> bytes;
  while (Clock::now() < deadline) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    if (got < 0) wait_readable(fd, std::min<Time>(deadline, Clock::now() + seconds(0.1)));
  }
  return false;
}

// A client of a rendezvous, message by message.
class Caller {
 public:
  explicit Caller(UniqueFd fd) : link_(std::move(fd), false) {}

  // Ignores a closed connection; hear() reports it.
  void say(const RendezvousWords& words) {
    link_.enqueue(words.to_frame());
    (void)link_.write();
  }
  // Returns nullopt if the other side closes the connection instead.
  std::optional<RendezvousWords> hear() {
    const Time deadline = soon();
    Status broken;
    while (Clock::now() < deadline) {
      const auto frame = link_.next_frame();
      expect_ok(frame.status(), "hearing");
      if (frame.value()) return RendezvousWords::parse(frame.value()->payload).value();
      if (!broken.ok()) return std::nullopt;
      if (wait_readable(link_.fd(), deadline)) broken = link_.read();
    }
    throw std::runtime_error("no answer");
  }
  [[nodiscard]] int fd() const { return link_.fd(); }

 private:
  SocketLink link_;
};

// Presents itself as this rank of two; returns the words of both sides.
RendezvousHello greet(Caller& caller, std::uint32_t rank) {
  RendezvousHello hello{rank, 2, random_name(), {}};
  caller.say({Verb::hello, rank, 2, hello.rank_word, {}});
  const auto challenge = caller.hear();
  expect(challenge && challenge->verb == Verb::challenge, "a challenge");
  hello.store_word = challenge->key;
  expect(challenge->value == hello.proof_of_store(RendezvousHello::key_of(secret)),
         "the store proves that it knows the secret");
  return hello;
}

// Rank 1 joins rank 0 at the address, and both complete a barrier.
void meet(Bootstrap& first, const std::string& address) {
  run_ranks(2, [&](int rank) {
    if (rank == 0) return expect_ok(first.barrier(soon()), "barrier of rank 0");
    const auto second = connect_rendezvous(address, 1, 2, soon(), secret);
    expect_ok(second.status(), "rank 1 enters");
    expect_ok(second.value()->barrier(soon()), "barrier of rank 1");
  });
}

std::unique_ptr<Bootstrap> open_rendezvous(const std::string& address) {
  auto first = connect_rendezvous(address, 0, 2, soon(), secret);
  expect_ok(first.status(), "rank 0 enters");
  return std::move(first).value();
}

// No descriptor can be opened while it exists, not even by UBSan, which checks an object's type
// through a pipe when it first sees it: so check results afterwards.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next.get());  // the lowest free descriptor
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Two ranks' control lanes, progressed by one thread, and what rank 1 has received from rank 0.
struct TwoLanes {
  TwoLanes() : hub(2) {
    run_ranks(2, [&](int rank) {
      const auto bootstrap = hub.make_bootstrap(rank);
      auto lane = open_control_socket(*bootstrap, std::array{0, 0}, "", soon());
      expect_ok(lane.status(), "opening the control lane");
      if (rank == 1) address = address_of_lane(*bootstrap, 1);
      lanes[static_cast<std::size_t>(rank)] = std::move(lane).value();
    });
    for (const auto& lane : lanes) {
      lane->on_loss([this](int, const Status& cause) { losses.push_back(cause.to_string()); });
      lane->on_message([](int, std::span<const std::byte>) {});
    }
    lanes[1]->on_message([this](int, std::span<const std::byte> message) {
      heard.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
    });
  }
  void say(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    lanes[0]->post(1, {bytes.begin(), bytes.end()});
  }
  void progress_until(const std::function<bool()>& enough) {
    const Time deadline = soon();
    while (!enough()) {
      REQUIRE(Clock::now() < deadline);
      for (const auto& lane : lanes) lane->progress();
    }
  }
  void close() {
    for (const auto& lane : lanes) CHECK(lane->close(soon()).ok());
  }

  InprocHub hub;
  std::string address;  // rank 1's
  std::array<std::unique_ptr<ControlLane>, 2> lanes;
  std::vector<std::string> heard;
  std::vector<std::string> losses;
};

}  // namespace

TEST_CASE("a barrier hands out what was put before it, so that nobody need ask") {
  auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  const std::string address = listener.value().address;
  const RendezvousStore store(std::move(listener).value(), 2, secret);
  std::array<Caller, 2> ranks{Caller(connect_to(address)), Caller(connect_to(address))};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const RendezvousHello hello = greet(ranks[rank], rank);
    const Key key = RendezvousHello::key_of(secret);
    ranks[rank].say({Verb::prove, 0, 0, {}, hello.proof_of_rank(key)});
    REQUIRE(ranks[rank].hear().value().verb == Verb::ok);
  }
  for (const std::string value : {"first", ""}) {
    ranks[0].say({Verb::put, 0, 0, "key of " + value, value});
    REQUIRE(ranks[0].hear().value().verb == Verb::ok);
    for (Caller& rank : ranks) rank.say({Verb::barrier, 0, 0, {}, {}});
    for (Caller& rank : ranks) {
      const auto texts = split_texts(rank.hear().value().value);
      REQUIRE(texts.ok());
      CHECK(*texts == std::vector<std::string>{"key of " + value, value});
    }
  }
  CHECK_FALSE(split_texts("half").ok());
  CHECK_FALSE(split_texts(std::string("\x05\0\0\0four", 8)).ok());
}

TEST_CASE("a process of another user is let in nowhere, and lets nobody in") {
  if (!can_become_another_user()) return;
  const Silence silence;
  const auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  const std::string address = listener.value().address;
  CHECK(is_served(address));
  CHECK(accept_from(listener.value().fd.get()).fd);  // the connection that is_served() made
  CHECK(succeeds_as_nobody([&] {
    const Status refused = start_connecting(address).status();
    expect(contains(refused, "runs as user 0, not as 65534"), refused.to_string());
    expect(!is_served(address), "it is not served by a process of this user");
  }));
  const pid_t child = start_child([&] {
    expect(::setresuid(nobody, nobody, nobody) == 0, "becoming another user");
    const UniqueFd fd = connect_blindly(address);
    expect(is_closed(fd.get(), soon()), "it is rejected");
  });
  REQUIRE(wait_readable(listener.value().fd.get(), soon()));
  // The first child's connections, and this child's.
  const Time deadline = soon();
  int code = -1;
  while (::waitpid(child, &code, WNOHANG) == 0 && Clock::now() < deadline) {
    CHECK_FALSE(accept_from(listener.value().fd.get()).fd);
    wait_readable(listener.value().fd.get(), Clock::now() + seconds(0.01));
  }
  CHECK(code == 0);
}

TEST_CASE("a process of another user does not become a rank, though it knows the secret") {
  if (!can_become_another_user()) return;
  const Silence silence;
  const std::string address = fresh_unix();
  // Forked before this process has threads.
  std::array<int, 2> go{};
  REQUIRE(::pipe(go.data()) == 0);
  const pid_t child = start_child([&] {
    char byte = 0;
    expect(::read(go[0], &byte, 1) == 1, "the rendezvous is open");
    expect(::setresuid(nobody, nobody, nobody) == 0, "becoming another user");
    Caller caller(connect_blindly(address));
    caller.say({Verb::hello, 1, 2, random_name(), {}});
    expect(!caller.hear(), "it is not answered");
    const auto entered = connect_rendezvous(address, 1, 2, Clock::now() + seconds(0.2), secret);
    expect(contains(entered.status(), "runs as user 0"), entered.status().to_string());
  });
  const auto first = open_rendezvous(address);
  REQUIRE(::write(go[1], "x", 1) == 1);
  CHECK(exit_code_of_child(child) == 0);
  meet(*first, address);
  ::close(go[0]);
  ::close(go[1]);
}

TEST_CASE("ranks that become another user together reach each other for the first time") {
  if (!can_become_another_user()) return;
  CHECK(exit_code_of([] {
          TwoLanes two;
          expect(::setresuid(nobody, nobody, nobody) == 0, "becoming another user");
          two.say("hello");
          const Time deadline = soon();
          while (two.heard.empty() && two.losses.empty() && Clock::now() < deadline) {
            for (const auto& lane : two.lanes) lane->progress();
          }
          expect(two.losses.empty(), two.losses.empty() ? "" : two.losses.front());
          expect(two.heard == std::vector<std::string>{"hello"}, "what rank 0 has said");
        }) == 0);
}

TEST_CASE("whoever does not know the job's secret does not become a rank") {
  const Silence silence;
  for (const std::string& address : {fresh_unix(), fresh_tcp()}) {
    const auto first = open_rendezvous(address);
    for (const std::string& other : {secret + "!", std::string(secret.size(), 'x')}) {
      const auto entered = connect_rendezvous(address, 1, 2, soon(), other);
      CHECK(entered.status().code() == ErrorCode::initialization);
      CHECK(contains(entered.status(), "RUEDA_SECRET"));
      CHECK_FALSE(contains(entered.status(), secret));
    }
    // A client that ignores what the store proves.
    Caller caller(connect_to(address));
    const RendezvousHello hello = greet(caller, 1);
    caller.say({Verb::prove, 0, 0, {}, hello.proof_of_rank(RendezvousHello::key_of("guess"))});
    const auto answer = caller.hear();
    REQUIRE(answer);
    CHECK(answer->verb == Verb::error);
    CHECK(is_closed(caller.fd(), soon()));
    meet(*first, address);
  }
}

TEST_CASE("what was heard of one conversation is of no use in another") {
  const Silence silence;
  const std::string address = fresh_unix();
  const auto first = open_rendezvous(address);
  const Key key = RendezvousHello::key_of(secret);
  Caller heard(connect_to(address));
  const RendezvousHello earlier = greet(heard, 1);
  const auto answer_to = [&](const std::function<std::string(const RendezvousHello&)>& proof) {
    Caller caller(connect_to(address));
    const RendezvousHello hello = greet(caller, 1);
    caller.say({Verb::prove, 0, 0, {}, proof(hello)});
    return caller.hear().value().verb;
  };
  CHECK(answer_to([&](const auto&) { return earlier.proof_of_rank(key); }) == Verb::error);
  CHECK(answer_to([&](const auto& hello) { return hello.proof_of_store(key); }) == Verb::error);
  CHECK(answer_to([&](RendezvousHello hello) {
          hello.rank = 0;
          return hello.proof_of_rank(key);
        }) == Verb::error);
  CHECK(answer_to([&](const auto& hello) { return hello.proof_of_rank(key); }) == Verb::ok);
}

TEST_CASE("a rank does not believe a store that does not know the secret") {
  const auto listener = listen_on("tcp:127.0.0.1:0");
  REQUIRE(listener.ok());
  for (const auto& [answer, expected] :
       {std::pair{RendezvousWords{Verb::ok, 0, 0, {}, {}}, "another version"},
        std::pair{RendezvousWords{Verb::challenge, 0, 0, random_name(), random_name()},
                  "another secret"}}) {
    std::thread store([&, &words = answer] {
      if (!wait_readable(listener.value().fd.get(), soon())) return;
      Caller caller(accept_from(listener.value().fd.get()).fd);
      if (caller.hear()) caller.say(words);
      is_closed(caller.fd(), soon());
    });
    const auto entered = connect_rendezvous(listener.value().address, 1, 2, soon(), secret);
    CHECK(contains(entered.status(), expected));
    store.join();
  }
}

TEST_CASE("a rendezvous over TCP needs a secret") {
  for (const std::string& none : {std::string(), std::string("short")}) {
    const auto entered = connect_rendezvous(fresh_tcp(), 0, 2, soon(), none);
    CHECK(contains(entered.status(), "needs RUEDA_SECRET"));
  }
}

TEST_CASE("the rendezvous takes no long frame from one that has not said who it is") {
  const Silence silence;
  const std::string address = fresh_unix();
  const auto first = open_rendezvous(address);
  const UniqueFd fd = connect_to(address);
  const std::array<std::uint32_t, 2> header{1U << 30, 1};
  REQUIRE(::send(fd.get(), header.data(), sizeof header, MSG_NOSIGNAL) == sizeof header);
  const std::vector<char> piece(1 << 16);
  std::size_t taken = 0;
  while (taken < std::size_t{64} << 20 && wait_writable(fd.get(), soon())) {
    const ssize_t sent = ::send(fd.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) break;
    if (sent > 0) taken += static_cast<std::size_t>(sent);
  }
  CHECK(taken < std::size_t{8} << 20);  // no more than the socket buffers hold
  meet(*first, address);
}

TEST_CASE("silent connections to the rendezvous are bounded, and keep no rank out") {
  const Silence silence;
  const std::string address = fresh_unix();
  const auto first = open_rendezvous(address);
  constexpr std::size_t count = 400;
  const std::size_t before = open_descriptors();
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < count; ++i) silent.push_back(connect_to(address));
  meet(*first, address);
  const auto closed = std::count_if(silent.begin(), silent.begin() + 300,
                                    [](const UniqueFd& fd) { return is_closed(fd.get(), soon()); });
  CHECK(closed == 300);
  CHECK(open_descriptors() < before + count + 100);
}

TEST_CASE("the rendezvous sleeps while no descriptor is left, and goes on when there is one") {
  const Silence silence;
  const std::string address = fresh_unix();
  const auto first = open_rendezvous(address);
  const UniqueFd another(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const AbstractAddress name(address.substr(std::strlen("unix:@")));
  int connected = -1;
  bool slept = false;
  {
    const NoDescriptors none;
    connected = ::connect(another.get(), name.get(), name.length);
    // Each sleep of the store is a voluntary context switch, as is each sleep of this loop; a store
    // that retries immediately makes none.
    rusage begun{};
    ::getrusage(RUSAGE_SELF, &begun);
    const auto switches = [&] {
      rusage now{};
      ::getrusage(RUSAGE_SELF, &now);
      return now.ru_nvcsw - begun.ru_nvcsw;
    };
    const Time deadline = Clock::now() + seconds(20);
    for (long own = 0; !slept && Clock::now() < deadline; ++own) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      slept = switches() >= own + 1 + 4;
    }
  }
  CHECK(connected == 0);
  CHECK(slept);
  meet(*first, address);
}

TEST_CASE("silent callers cost those who answer calls no time") {
  const Silence silence;
  const auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  const std::string world = random_name();
  // One after the other, at five seconds each, they would take longer than the deadline.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(connect_to(listener.value().address));
  const auto stranger = call_rank_zero(listener.value().address, random_name(), 1);
  const auto half = connect_to(listener.value().address);
  REQUIRE(::send(half.get(), world.data(), 7, MSG_NOSIGNAL) == 7);
  const auto caller = call_rank_zero(listener.value().address, world, 1);
  REQUIRE(caller.ok());
  std::vector<int> answered;
  const Status status = answer_calls(listener.value().fd.get(), world, 2, "a test", soon(),
                                     [&](int rank, const UniqueFd&) {
                                       answered.push_back(rank);
                                       return true;
                                     });
  CHECK(status.ok());
  CHECK(answered == std::vector<int>{1});
  CHECK(is_closed(stranger.value().get(), soon()));
}

TEST_CASE("calls are answered until the deadline, however many strangers come") {
  const Silence silence;
  const auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  std::atomic<bool> done{false};
  std::atomic<long> came{0};
  std::thread strangers([&] {
    for (const Time end = soon(); !done && Clock::now() < end; ++came) {
      const auto fd = start_connecting(listener.value().address);
    }
  });
  const Status status =
      answer_calls(listener.value().fd.get(), random_name(), 3, "a test",
                   Clock::now() + seconds(0.3), [](int, const UniqueFd&) { return true; });
  const long when_over = came;
  const Time deadline = soon();
  while (came < when_over + 10 && Clock::now() < deadline) {
    // With a full listen queue, each connection would wait for seconds.
    accept_from(listener.value().fd.get()).fd.reset();
  }
  CHECK(came >= when_over + 10);  // they had not stopped coming
  done = true;
  strangers.join();
  CHECK(status.code() == ErrorCode::initialization);
  CHECK(contains(status, "ranks 1 and 2 did not connect to receive a test before the deadline"));
}

TEST_CASE("those who answer calls sleep while no descriptor is left, and end at the deadline") {
  const Silence silence;
  const auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  const UniqueFd waiting = connect_to(listener.value().address);
  rusage begun{};
  rusage now{};
  const Status status = [&] {
    const NoDescriptors none;
    ::getrusage(RUSAGE_THREAD, &begun);
    Status ended =
        answer_calls(listener.value().fd.get(), random_name(), 2, "a test",
                     Clock::now() + seconds(0.5), [](int, const UniqueFd&) { return true; });
    ::getrusage(RUSAGE_THREAD, &now);
    return ended;
  }();
  CHECK(contains(status, "rank 1 did not connect"));
  // Each sleep is a voluntary context switch, and may be long on a busy machine; retrying
  // immediately makes none.
  CHECK(now.ru_nvcsw - begun.ru_nvcsw >= 1);
}

TEST_CASE("silent connections to a control lane cost no rank its place") {
  const Silence silence;
  TwoLanes two;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(connect_to(two.address));
    two.lanes[1]->progress();
  }
  two.say("hello");
  two.progress_until([&] { return two.heard.size() == 1; });
  // The oldest connection was closed.
  CHECK(is_closed(silent.front().get(), soon()));
  for (int i = 0; i < 200; ++i) {
    silent.push_back(connect_to(two.address));
    two.lanes[1]->progress();
  }
  two.say("again");
  two.progress_until([&] { return two.heard.size() == 2; });
  CHECK(two.heard == std::vector<std::string>{"hello", "again"});
  CHECK(two.losses.empty());
  two.close();
}

TEST_CASE("a rank that is rejected before it was heard calls again, and nothing is lost") {
  const Silence silence;
  TwoLanes two;
  two.say("first");
  two.say("second");
  {
    const NoDescriptors none;
    two.lanes[1]->progress();
  }
  two.say("third");
  two.progress_until([&] { return two.heard.size() == 3; });
  two.say("fourth");
  two.progress_until([&] { return two.heard.size() == 4; });
  CHECK(two.heard == std::vector<std::string>{"first", "second", "third", "fourth"});
  CHECK(two.losses.empty());
  two.close();
}

TEST_CASE("whoever does not know the world's key takes no rank's place on the control lane") {
  const Silence silence;
  TwoLanes two;
  // Well-formed except for the proof.
  std::array<std::byte, Handshake::hello_bytes> hello{};
  std::memcpy(hello.data(), "ruedactl", 8);
  const std::array<std::uint32_t, 2> version_and_rank{3, 0};
  std::memcpy(hello.data() + 8, version_and_rank.data(), sizeof version_and_rank);
  const UniqueFd fd = connect_to(two.address);
  REQUIRE(::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == sizeof hello);
  for (int i = 0; i < 10; ++i) two.lanes[1]->progress();
  CHECK(is_closed(fd.get(), soon()));
  two.say("hello");
  two.progress_until([&] { return two.heard.size() == 1; });
  CHECK(two.losses.empty());
  two.close();
}

TEST_CASE("of many warnings one a second is let through, with the number of the others") {
  RateLimit limit;
  Time now = Clock::now();
  CHECK(limit.admit(now) == 0);
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(limit.admit(now + seconds(i * 0.0009)));
  CHECK(limit.admit(now + seconds(1.5)) == 1000);
  CHECK_FALSE(limit.admit(now + seconds(2)));
  CHECK(limit.admit(now + seconds(9)) == 1);
}

TEST_CASE("a key's proofs differ with every part and with the key") {
  const Key key(secret);
  const std::set<std::string> proofs{key.proof_text({"a", "b"}),
                                     key.proof_text({"ab"}),
                                     key.proof_text({"a", "b", ""}),
                                     key.proof_text({"b", "a"}),
                                     key.proof_text({}),
                                     Key("").proof_text({"a", "b"}),
                                     key.derive({"a", "b"}).proof_text({"a", "b"})};
  CHECK(proofs.size() == 7);
  CHECK(is_same_secret(key.proof_text({"a"}), Key(secret).proof_text({"a"})));
}

}  // namespace rueda::test::stranger_test
