// The cost of a repeated step: no system calls except those of sleeping, and no allocation by
// Rueda's threads.
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "api/bindings.h"
#include "core/clock.h"
#include "ranks/rank_threads.h"
#include "rueda/persistent.h"
#include "rueda/rueda.h"
#include "transport/socket.h"
#include "unit/child_process.h"
#include "unit/seccomp_filter.h"

namespace {

// Of all threads; own_allocations: of the current thread.
std::atomic<long> allocations{0};
std::atomic<long> allocated_bytes{0};
thread_local long own_allocations = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these have their own
void* operator new(std::size_t bytes) {
  ++allocations;
  ++own_allocations;
  allocated_bytes += static_cast<long>(bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif

namespace rueda::test::steady_state_test {

namespace {

constexpr int warm_up = 200;
constexpr int steps = 2000;
// Descriptors that were ready during the first steps are checked once more and then watched again,
// by a thread that may have to wait for a CPU on a busy machine.
constexpr auto settling = std::chrono::milliseconds(200);

// In memory shared by both ranks.
struct Meeting {
  std::atomic<int> begun;
  std::atomic<int> ended;
};
Meeting* meeting = nullptr;
std::atomic<int> verdict{0};  // this rank's exit code, once its steps have ended

void meet(std::atomic<int>& counter) {
  counter.fetch_add(1);
  while (counter.load() < 2) continue;
}

void say(const char* format, auto... values) {
  char text[200];
  const int length = std::snprintf(text, sizeof text, format, values...);
  [[maybe_unused]] const auto written = ::write(2, text, static_cast<std::size_t>(length));
}

// Once both have ended their steps, the watcher of one may see the other exit: that is fine.
extern "C" void report_call(int, siginfo_t* info, void*) {
  if (meeting->ended.load() == 2) ::_exit(verdict);
  say("system call %d in the steady state\n", info->si_syscall);
  ::_exit(3);
}

struct Allocations {
  long by_caller = 0;
  long by_others = 0;
  long bytes = 0;
};

// Runs the step with only these system calls: to sleep (futex, membarrier), to yield the CPU to
// another rank (sched_*), to access the other rank's unregistered memory (process_vm_*), and to
// report the result. Then ends the process.
[[noreturn]] void run_confined(const std::function<void()>& step,
                               const std::function<bool(const Allocations&)>& is_right) {
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < warm_up; ++i) step();
    std::this_thread::sleep_for(settling);
  }
  struct sigaction action{};
  action.sa_sigaction = &report_call;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSYS, &action, nullptr);
  meet(meeting->begun);
  allow_only({SYS_futex, SYS_membarrier, SYS_sched_getaffinity, SYS_sched_setaffinity,
              SYS_sched_yield, SYS_process_vm_readv, SYS_process_vm_writev, SYS_write,
              SYS_exit_group});
  const long all = allocations.load();
  const long own = own_allocations;
  const long bytes = allocated_bytes.load();
  for (int i = 0; i < steps; ++i) step();
  Allocations made;
  made.by_caller = own_allocations - own;
  made.by_others = allocations.load() - all - made.by_caller;
  made.bytes = allocated_bytes.load() - bytes;
  if (!is_right(made)) {
    say("allocations in %d steps: %ld by the caller, %ld by other threads, %ld bytes\n", steps,
        made.by_caller, made.by_others, made.bytes);
    verdict = 4;
  }
  meet(meeting->ended);
  ::_exit(verdict);
}

// Otherwise malloc() asks the kernel for a new arena when the progress thread first does what only
// the caller has done before.
void ask_for_memory_at_once() {
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_TOP_PAD, 16 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

// Runs on two ranks; true if both succeeded. `prepare` sets up once, and returns the step.
using Prepare = std::function<std::function<void()>()>;
bool holds_once(const Prepare& prepare, const std::function<bool(const Allocations&)>& is_right) {
  void* const shared =
      ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  meeting = new (shared) Meeting{};
  const std::string rendezvous = "unix:@rueda-test-" + random_name();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(start_child([&] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setenv("RUEDA_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("RUEDA_SIZE", "2", 1);
      ::setenv("RUEDA_RENDEZVOUS", rendezvous.c_str(), 1);
      ask_for_memory_at_once();
      init();
      run_confined(prepare(), is_right);
    }));
  }
  bool succeeded = true;
  for (const pid_t rank : ranks) succeeded = exit_code_of_child(rank) == 0 && succeeded;
  ::munmap(shared, sizeof(Meeting));
  return succeeded;
}

// A call in each step, or in each hundred, shows in every attempt; a late one from the warm-up, by
// a thread that waited that long for a CPU, does not.
bool holds(const Prepare& prepare, const std::function<bool(const Allocations&)>& is_right) {
  constexpr int attempts = 3;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (holds_once(prepare, is_right)) return true;
  }
  return false;
}

bool can_run() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("skipped: sanitizers make system calls of their own");
  return false;
#else
  if (std::thread::hardware_concurrency() > 1) return true;
  WARN("skipped: ranks that outnumber the processors yield them to each other");
  return false;
#endif
}

TensorView floats(std::byte* data, std::size_t count) {
  return {data, {static_cast<std::int64_t>(count)}, DataType::float32};
}

// All calls; those done at once after the warm-up; and the allocations of the latter.
long calls = 0;
long done_at_once = 0;
long allocations_at_once = 0;

// A call as Python makes it: at once, or as an ordinary operation if the other rank is late.
void repeat(std::byte* data, std::size_t count, std::string_view name) {
  const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(count)};
  const PlainAllreduce call{.name = name, .input = data, .output = data, .shape = shape};
  const auto deadline = [] { return Clock::now() + std::chrono::minutes(1); };
  Handle handle;
  const long before = own_allocations;
  const Tried tried = try_to_repeat(call, deadline, handle);
  if (tried == Tried::done) {
    if (++calls <= 2 * warm_up) return;
    ++done_at_once;
    allocations_at_once += own_allocations - before;
    return;
  }
  ++calls;
  if (tried == Tried::not_repeated) {
    handle = allreduce_blocking(floats(data, count), data, {.name = std::string(name)}, deadline());
  }
  handle.wait();
}

}  // namespace

TEST_CASE("a persistent allreduce makes no system call and allocates nothing") {
  if (!can_run()) return;
  for (const std::size_t count : {1, 1000, 300'001}) {
    INFO(count << " elements");
    CHECK(holds(
        [&] {
          const auto memory = allocate(count * sizeof(float));
          const auto sum = std::make_shared<Allreduce>(floats(memory.get(), count));
          return [memory, sum] {
            sum->start();
            sum->wait();
          };
        },
        [](const Allocations& made) { return made.by_caller == 0 && made.by_others == 0; }));
  }
}

TEST_CASE("a small allreduce for which all ranks come at once allocates nothing") {
  if (!can_run()) return;
  for (const char* name : {"gradient", ""}) {
    for (const std::size_t count : {1, 1000}) {
      INFO(count << " elements, '" << name << "'");
      CHECK(holds(
          [&] {
            const auto memory = allocate(count * sizeof(float));
            return [memory, count, name] { repeat(memory.get(), count, name); };
          },
          [](const Allocations&) { return done_at_once > 0 && allocations_at_once == 0; }));
    }
  }
}

TEST_CASE("named allreduces that are repeated make no system call") {
  if (!can_run()) return;
  const auto any = [](const Allocations&) { return true; };
  for (const std::size_t count : {1, 1000, 300'001}) {
    INFO(count << " elements");
    CHECK(holds(
        [&] {
          const auto memory = allocate(count * sizeof(float));
          return [memory, count] {
            allreduce_blocking(floats(memory.get(), count), memory.get(), {.name = "gradient"});
          };
        },
        any));
    CHECK(holds(
        [&] {
          const auto memory = allocate(count * sizeof(float));
          return [memory, count] {
            allreduce(floats(memory.get(), count), memory.get(), {.name = "gradient"}).wait();
          };
        },
        any));
  }
  CHECK(holds(
      [] {
        constexpr std::size_t count = 40;
        const auto memory = allocate(count * 1024 * sizeof(float));
        return [memory] {
          std::vector<TensorView> tensors;
          std::vector<void*> outputs;
          for (std::size_t i = 0; i < count; ++i) {
            std::byte* data = memory.get() + i * 1024 * sizeof(float);
            tensors.push_back(floats(data, 25 * i));
            outputs.push_back(data);
          }
          for (const Handle& handle : grouped_allreduce(tensors, outputs, {.name = "gradients"})) {
            handle.wait();
          }
        };
      },
      any));
}

TEST_CASE("named allreduces of ordinary memory take none of the size of their tensors") {
  if (!can_run()) return;
  for (const char* algorithm : {"flat:0-", "direct:0-"}) {
    ::setenv("RUEDA_ALGORITHM", algorithm, 1);
    for (const std::size_t count : {1000, 16'000, 300'001}) {
      INFO(count << " elements, " << algorithm);
      CHECK(holds(
          [&] {
            const auto memory = std::make_shared<std::vector<float>>(count);
            return [memory, count] {
              auto* const data = reinterpret_cast<std::byte*>(memory->data());
              allreduce(floats(data, count), data, {.name = "gradient"}).wait();
            };
          },
          [](const Allocations& made) { return made.bytes < steps * 3000L; }));
    }
  }
  ::unsetenv("RUEDA_ALGORITHM");
}

}  // namespace rueda::test::steady_state_test
