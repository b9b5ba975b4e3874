// Callers that drive the engine while they wait, besides its own thread.
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <random>
#include <vector>

#include "coordinator/network_spinning.h"
#include "coordinator/progress.h"
#include "core/unique_fd.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::engine_driving_test {

using namespace std::chrono_literals;

TEST_CASE("a caller that waits at once needs no other thread") {
  run_engines(1, {}, [](int, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    // The engine's thread may not have started yet, and has work when it starts.
    await([&] { return metric(engine, "sleeps") > 0; }, "the engine's thread has sat down");
    expect_asleep(engine);
    const auto before = engine.metrics().values();
    for (int i = 0; i < 100; ++i) {
      const Handle handle = run(engine, allreduce_of(tensor, DataType::float32, "x"));
      expect(handle.done(), "an operation that is done when the call returns");
      finish(handle);
    }
    const auto after = engine.metrics().values();
    expect(after.at("driven_by_caller") == before.at("driven_by_caller") + 100, "100 drives");
    expect(after.at("sleeps") == before.at("sleeps"), "the engine's thread did not wake up");
  });
}

TEST_CASE("an operation that nobody waits for completes") {
  run_engines(3, {}, [](int, Runtime& engine) {
    std::vector<float> tensor(1000, 1);
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    for (const Time limit = soon(); !handle.done();) {
      expect(Clock::now() < limit, "completion without a wait");
      std::this_thread::sleep_for(1ms);
    }
    expect(tensor[999] == 3, "the sum");
  });
}

TEST_CASE("what is under way when a caller leaves goes on without it") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    std::vector<float> awaited(4, 1);
    std::vector<float> left(100000, 1);
    for (int round = 0; round < 50; ++round) {
      std::fill(left.begin(), left.end(), 1.0F);
      const Handle other = submit(engine, allreduce_of(left, DataType::float32, "left"));
      finish(run(engine, allreduce_of(awaited, DataType::float32, "awaited")));
      if (rank == round % 2) std::this_thread::sleep_for(1ms);
      for (const Time limit = soon(); !other.done();) {
        expect(Clock::now() < limit, "completion without a wait");
        std::this_thread::yield();
      }
      expect(left[99999] == 2, "the sum");
    }
  });
}

TEST_CASE("several threads of each rank wait at the same time, in every way") {
  constexpr int threads = 3;
  constexpr int rounds = 60;
  const int size = GENERATE(1, 2, 3);
  run_engines(size, {}, [&](int rank, Runtime& engine) {
    const std::string failures = run_threads(threads, "thread", [&](int thread) {
      std::mt19937 random(static_cast<unsigned>(rank * threads + thread));
      for (int round = 0; round < rounds; ++round) {
        std::vector<float> tensor(static_cast<std::size_t>(1 + thread * 50), 1);
        const std::string name = str("thread", thread);
        const auto wanted = allreduce_of(tensor, DataType::float32, name);
        Handle handle;
        switch (random() % 4) {
          case 0: handle = run(engine, wanted); break;
          case 1: handle = submit(engine, wanted); break;
          case 2:
            handle = submit(engine, wanted);
            while (!handle.wait_for(20us)) continue;
            break;
          default: handle = engine.submit_and_wait(0, one(wanted), Clock::now() + 10us).front();
        }
        finish(handle);
        expect(tensor.back() == static_cast<float>(size), "the sum");
      }
    });
    expect(failures.empty(), failures);
  });
}

TEST_CASE("a wait with a deadline gives up, and the operation goes on") {
  std::barrier together(2);
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    if (rank == 1) together.arrive_and_wait();
    const Handle handle = engine
                              .submit_and_wait(0, one(allreduce_of(tensor, DataType::float32, "x")),
                                               Clock::now() + (rank == 1 ? 60s : 5ms))
                              .front();
    if (rank == 0) {
      expect(!handle.done(), "not without the other rank");
      expect(!handle.wait_for(5ms), "not without the other rank");
      together.arrive_and_wait();
    }
    finish(handle);
    expect(tensor[0] == 2, "the sum");
  });
}

TEST_CASE("a thread that is cancelled while it drives leaves nobody without progress") {
  std::barrier together(2);
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    std::vector<float> late(4, 1);
    std::vector<float> tensor(4, 1);
    const auto submit_late = [&] {
      return submit(engine, allreduce_of(late, DataType::float32, "late"));
    };
    const auto reduce = [&] {
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    };
    if (rank == 1) {
      reduce();
      together.arrive_and_wait();
      return finish(submit_late());
    }
    const Handle handle = submit_late();
    std::thread waiting([&] { (void)handle.state()->outlast(soon()); });
    await([&] { return handle.state()->is_awaited(); }, "a thread that waits");
    std::this_thread::sleep_for(20ms);  // until it sleeps
    pthread_cancel(waiting.native_handle());
    reduce();
    together.arrive_and_wait();
    finish(handle);
    waiting.join();
  });
}

TEST_CASE("shutting down ends the wait of a thread that drives, whose handle lives on") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    if (rank == 1) {
      std::this_thread::sleep_for(200ms);  // leaves after rank 0
      return;
    }
    auto waiting = std::async(std::launch::async, [&] {
      return run(engine, allreduce_of(tensor, DataType::float32, "never"));
    });
    std::this_thread::sleep_for(50ms);
    engine.shutdown();
    const Handle handle = waiting.get();
    bool refused = false;
    try {
      finish(handle);
    } catch (const ShutdownError&) {
      refused = true;
    }
    expect(refused, "a ShutdownError");
  });
}

TEST_CASE("a handle can be asked after its engine has gone") {
  std::vector<float> tensor(4, 1);
  Handle handle;
  run_engines(1, {}, [&](int, Runtime& engine) {
    handle = run(engine, allreduce_of(tensor, DataType::float32, "x"));
  });
  CHECK(handle.done());
  CHECK_NOTHROW(finish(handle));
}

TEST_CASE("a signal ends the sleep of a caller that drives") {
  struct sigaction ignore{};
  ignore.sa_handler = [](int) {};
  struct sigaction before{};
  ::sigaction(SIGUSR1, &ignore, &before);
  std::barrier together(2);
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    if (rank == 1) {
      together.arrive_and_wait();
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
      return;
    }
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    std::atomic<bool> interrupted{false};
    const pthread_t waiter = ::pthread_self();
    std::thread sender([&] {
      while (!interrupted) {  // until a signal interrupts its sleep
        ::pthread_kill(waiter, SIGUSR1);
        std::this_thread::sleep_for(1ms);
      }
    });
    const FutexWake wake = handle.state()->wait(soon());
    interrupted = true;
    sender.join();
    together.arrive_and_wait();
    expect(wake == FutexWake::interrupted, "an interruption");
    finish(handle);
  });
  ::sigaction(SIGUSR1, &before, nullptr);
}

namespace {

// Waits for a network on which data arrives occasionally. Counts the polls.
class NetworkWork final : public Progress::Work {
 public:
  NetworkWork(HandleState& handle, int expected, bool much = false)
      : handle_(handle), expected_(expected), much_(much) {}

  bool take_commands(Time) override { return false; }
  bool advance(Time, Readable) override {
    ++looks_;
    std::uint64_t count = 0;
    if (::read(network.get(), &count, sizeof count) < 0) return false;
    looks_by_arrival.push_back(std::exchange(looks_, 0));
    if (++arrived == expected_) handle_.complete({});
    return true;
  }
  bool is_active() const override { return true; }
  Deadlines deadlines() const override { return {}; }
  bool requires_polling() const override { return false; }
  OnNetwork awaits_network() const override { return much_ ? OnNetwork::much : OnNetwork::little; }
  bool awaits_messages() const override { return false; }
  void prepare_to_sleep() override {}
  Arming arm() override { return Arming::armed; }
  void disarm() override {}
  bool may_stop(Time) const override { return stopping; }
  void wind_up() override {}
  void fail_internal(const std::exception&) override {}

  const UniqueFd network{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::vector<int> looks_by_arrival;  // polls since the previous arrival
  std::atomic<int> arrived{0};
  std::atomic<bool> stopping{false};

 private:
  HandleState& handle_;
  const int expected_;
  const bool much_;
  int looks_ = 0;
};

// Polls since the previous arrival, for each of several. The next one comes `pause` after the last
// has been found.
std::vector<int> looks_by_arrival(int arrivals, Duration pause, bool much) {
  const HostGroup host;
  Metrics metrics;
  HandleState handle;
  NetworkWork work(handle, arrivals, much);
  Progress progress(work, host, 1, metrics);
  REQUIRE(progress.start(-1, work.network.get()).ok());
  // The engine's thread, just started, may hold the work; it releases it when it sleeps.
  await([&] { return progress.acquire(); }, "the thread of the engine sleeps");
  std::thread peer([&] {
    for (int i = 0; i < arrivals; ++i) {
      await([&] { return work.arrived == i; }, "what came before has been found");
      std::this_thread::sleep_for(pause);
      ::eventfd_write(work.network.get(), 1);
    }
  });
  (void)progress.drive_until_done(handle, soon());
  progress.release();
  peer.join();
  work.stopping = true;
  progress.notify();
  progress.join();
  progress.stop_watching();
  REQUIRE(work.looks_by_arrival.size() == static_cast<std::size_t>(arrivals));
  return work.looks_by_arrival;
}

}  // namespace

TEST_CASE("nobody spins for a network that takes its time") {
  constexpr int arrivals = 40;
  const auto looks = looks_by_arrival(arrivals, 2ms, false);
  // Once it has learned not to spin, an arrival takes two polls: the last before the sleep, and the
  // one that finds the data. If the thread is preempted, data that arrives meanwhile looks like a
  // fast network, so not every arrival counts. Without learning, each takes at least 20 polls.
  const auto few = std::count_if(looks.begin(), looks.end(), [](int count) { return count == 2; });
  CHECK(few >= arrivals / 10);
}

TEST_CASE("nobody spins for a transfer that takes far longer than waking up") {
  const auto looks = looks_by_arrival(40, 30us, true);
  // The last poll before the sleep and the one that finds the data, but for a few at the start. A
  // spin of 30 µs takes tens.
  const auto few = std::count_if(looks.begin(), looks.end(), [](int count) { return count <= 3; });
  CHECK(few >= 36);
}

TEST_CASE("whether to spin for a network is learned from sleeps") {
  NetworkSpinning spinning;
  CHECK(spinning.limit() == NetworkSpinning::max_spin);
  for (int i = 0; i < 10; ++i) spinning.learn_from(1ms);
  CHECK(spinning.limit() == Duration::zero());
  spinning.learn_from(10us);
  CHECK(spinning.limit() == NetworkSpinning::min_spin);
  for (int i = 0; i < 10; ++i) spinning.learn_from(10us);
  CHECK(spinning.limit() == NetworkSpinning::max_spin);
  spinning.learn_from(NetworkSpinning::short_sleep - 1ns);
  CHECK(spinning.limit() == NetworkSpinning::max_spin);
  spinning.learn_from(NetworkSpinning::short_sleep);
  CHECK(spinning.limit() == NetworkSpinning::max_spin / 2);
}

}  // namespace rueda::test::engine_driving_test
