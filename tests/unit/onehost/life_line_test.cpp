// How the end of a process is noticed while the kernel is still tearing it down.
#include "onehost/life_line.h"

#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/wait_fd.h"
#include "onehost/peer_process.h"
#include "onehost/process_state.h"
#include "ranks/rank_threads.h"
#include "transport/descriptors.h"
#include "unit/child_process.h"
#include "unit/seccomp_filter.h"

namespace rueda::test::life_line_test {

namespace {

// ThreadSanitizer allows no new thread in a forked child of a process with threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool children_may_begin_threads = false;
#else
constexpr bool children_may_begin_threads = true;
#endif

constexpr long close_range_call = 436;  // as on all of Linux's architectures

// A child that has handed over its life line and its process descriptor. Its own child holds copies
// of all its descriptors and outlives it until the pipe is closed.
class Doomed {
 public:
  Doomed() {
    std::array<int, 2> pair{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0);
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    outlives_ = UniqueFd(pipe[1]);
    const UniqueFd until_closed(pipe[0]);
    socket_ = UniqueFd(pair[0]);
    const UniqueFd other(pair[1]);
    process_ = start_child([&] {
      outlives_.reset();
      const UniqueFd own = PeerProcess::open_own();
      const std::array<int, 2> fds{own.get(), life_line()};
      start_child([&] {
        char byte = 0;
        [[maybe_unused]] const auto got = ::read(until_closed.get(), &byte, 1);
      });
      expect_ok(send_descriptors(other.get(), fds, soon()), "handing over");
      for (;;) ::pause();
    });
    auto fds = receive_descriptors(socket_.get(), 2, "the ends", soon());
    REQUIRE(fds.ok());
    own_ = std::move(fds.value()[0]);
    line_ = std::move(fds.value()[1]);
  }
  ~Doomed() {
    ::kill(process_, SIGKILL);
    exit_code_of_child(process_);
  }
  Doomed(const Doomed&) = delete;
  Doomed& operator=(const Doomed&) = delete;

  [[nodiscard]] int line() const { return line_.get(); }
  [[nodiscard]] int descriptor() const { return own_.get(); }
  [[nodiscard]] pid_t process() const { return process_; }
  void kill() const { ::kill(process_, SIGKILL); }
  PeerProcess as_peer() { return {process_, std::move(own_), std::move(line_)}; }

 private:
  pid_t process_ = -1;
  UniqueFd outlives_;
  UniqueFd socket_;
  UniqueFd own_;
  UniqueFd line_;
};

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

// The thread that holds the life line.
pid_t other_thread_of(pid_t process) {
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(process) + "/task");
  for (const auto& entry : threads) {
    const pid_t thread = std::stoi(entry.path().filename());
    if (thread != process) return thread;
  }
  return -1;
}

bool becomes_true(const std::function<bool()>& what) {
  for (const Time deadline = soon(); Clock::now() < deadline;) {
    if (what()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace

TEST_CASE("a life line ends with its process, whatever its children hold") {
  const Doomed doomed;
  CHECK_FALSE(is_readable(doomed.line()));
  doomed.kill();
  CHECK(wait_readable(doomed.line(), soon()));
}

// In children, so that this process stays single-threaded.
TEST_CASE("a process has one life line, and a forked child another") {
  CHECK(exit_code_of([] {
          const int line = life_line();
          if (line < 0 || life_line() != line || is_readable(line))
            throw std::runtime_error("not one");
          if (!children_may_begin_threads) return;
          const int code = exit_code_of([&] {
            const int own = life_line();
            if (own < 0 || own == line || is_readable(own)) throw std::runtime_error("not its own");
          });
          if (code != 0 || is_readable(line)) throw std::runtime_error("the child's");
        }) == 0);
}

TEST_CASE("where no thread may have descriptors of its own there is no life line, nor a leak") {
  CHECK(exit_code_of([] {
          const std::size_t before = open_descriptors();
          forbid({close_range_call}, ENOSYS);
          if (life_line() != -1) throw std::runtime_error("there is one");
          if (open_descriptors() != before) throw std::runtime_error("descriptors stay open");
        }) == 0);
}

TEST_CASE("a process that was killed has left its memory before anybody has waited for it") {
  const Doomed doomed;
  CHECK_FALSE(has_left_memory(doomed.process()));
  doomed.kill();
  CHECK(becomes_true([&] { return has_left_memory(doomed.process()); }));
}

TEST_CASE("a process is stopped from SIGSTOP to SIGCONT") {
  const Doomed doomed;
  CHECK(becomes_true([&] { return !is_stopped(doomed.process()); }));
  ::kill(doomed.process(), SIGSTOP);
  CHECK(becomes_true([&] { return is_stopped(doomed.process()); }));
  ::kill(doomed.process(), SIGCONT);
  CHECK(becomes_true([&] { return !is_stopped(doomed.process()); }));
  CHECK_FALSE(is_dumping_core(doomed.process()));
}

TEST_CASE("of a process that is not there it is not known whether it is stopped") {
  CHECK_FALSE(is_stopped(-1));
  CHECK_FALSE(is_stopped(1 << 30));
  CHECK_FALSE(is_dumping_core(-1));
  CHECK_FALSE(is_dumping_core(1 << 30));
}

TEST_CASE("who lives has not left its memory, and of who is not there nothing is known") {
  CHECK_FALSE(has_left_memory(::getpid()));
  CHECK_FALSE(has_left_memory(-1));
  CHECK_FALSE(has_left_memory(1 << 30));
}

// A traced thread remains, without memory, until its tracer waits for it, and its process does not
// end before that. This leaves time between the last instruction and the end.
TEST_CASE("a peer has ended when nothing of it runs, before the kernel says that it is over") {
  Doomed doomed;
  const UniqueFd over(::dup(doomed.descriptor()));
  const PeerProcess peer = doomed.as_peer();
  CHECK_FALSE(peer.has_ended());
  const pid_t holder = other_thread_of(doomed.process());
  REQUIRE(::ptrace(PTRACE_SEIZE, holder, nullptr, nullptr) == 0);
  doomed.kill();
  CHECK(becomes_true([&] { return peer.has_ended(); }));
  CHECK_FALSE(is_readable(over.get()));
  REQUIRE(::waitpid(holder, nullptr, __WALL) == holder);
  CHECK(wait_readable(over.get(), soon()));
  CHECK(peer.has_ended());
}

TEST_CASE("a life line that ends while its process goes on is no end") {
  const Doomed doomed;
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  ::close(pipe[1]);
  const PeerProcess peer(doomed.process(), UniqueFd(::dup(doomed.descriptor())), UniqueFd(pipe[0]));
  REQUIRE(peer.identifier() == doomed.process());
  REQUIRE(is_readable(peer.life_line()));
  CHECK_FALSE(peer.has_ended());
}

}  // namespace rueda::test::life_line_test
