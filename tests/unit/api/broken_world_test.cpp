// Ranks of one host that access each other's tensors when their world ends.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <thread>

#include "api/persistent_kinds.h"
#include "onehost/host_reduction.h"
#include "ranks/engine_ranks.h"
#include "transport/inproc.h"

namespace rueda::test::broken_world_test {

namespace {

using namespace std::chrono_literals;

// If two ranks wait for each other, each wait takes 20 s; otherwise microseconds.
constexpr auto one_wait = 20s;

// A barrier of ranks that are threads.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void meet() {
    const int round = arrived_.fetch_add(1) / size_;
    await([&] { return arrived_.load() >= (round + 1) * size_; }, "ranks that meet");
  }

 private:
  const int size_;
  std::atomic<int> arrived_{0};
};

void on_one_host(int size,
                 const std::function<void(int rank, const std::shared_ptr<HostMemory>&)>& body) {
  InprocHub hub(size);
  run_ranks(size, [&](int rank) {
    auto host = HostMemory::form(*hub.make_bootstrap(rank), soon());
    host.status().throw_if_error();
    body(rank, host.value());
  });
}

std::vector<int> ranks_below(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Large enough that ranks access each other's tensors directly.
constexpr std::size_t count = 100'000;

struct Reduction {
  Reduction(const std::shared_ptr<HostMemory>& host, std::uint64_t key, bool is_flat)
      : channel(host, ranks_below(host->size()), host->rank(), key, HostChannel::WokenBy::rank),
        tensor(count, 1),
        collective(channel, {.flat_limit = is_flat ? slot_bytes : 0, .huge_pages = false},
                   {DataType::float32, ReduceOp::sum, 1, 1, 1}, host->size(),
                   {{reinterpret_cast<std::byte*>(tensor.data()),
                     reinterpret_cast<std::byte*>(tensor.data()), count}}) {}
  void arrive() {
    await([&] { return collective.advance(); }, "an arrival");
  }
  HostChannel channel;
  std::vector<float> tensor;
  HostReduction collective;
};

}  // namespace

TEST_CASE("ranks that give up many collectives in different orders do not wait for each other") {
  constexpr int size = 3;
  constexpr int reductions = 6;
  Meeting meeting(size);
  on_one_host(size, [&](int rank, const std::shared_ptr<HostMemory>& host) {
    std::vector<std::unique_ptr<Reduction>> running;
    for (std::uint64_t key = 1; key <= reductions; ++key) {
      running.push_back(std::make_unique<Reduction>(host, key, false));
    }
    meeting.meet();
    // The last rank joins none, so that the others are in the middle of all.
    if (rank < size - 1) {
      for (const auto& reduction : running) reduction->arrive();
    }
    meeting.meet();
    const Time begin = Clock::now();
    host->give_up();
    if (rank == 1) std::reverse(running.begin(), running.end());
    for (auto& reduction : running) {
      reduction.reset();
      // So that no rank finishes before another begins.
      std::this_thread::yield();
    }
    expect(Clock::now() - begin < one_wait, "nobody waits in vain");
  });
}

TEST_CASE("a channel in which a thread works stops when that thread has left, and lets none in") {
  constexpr int size = 2;
  Meeting meeting(size);
  on_one_host(size, [&](int rank, const std::shared_ptr<HostMemory>& host) {
    HostChannel channel(host, ranks_below(size), rank, 1, HostChannel::WokenBy::channel, 0);
    meeting.meet();
    expect(channel.is_open(), "both have opened it");
    {
      const HostChannel::Visit visit(channel);
      expect(static_cast<bool>(visit), "a visit before the end");
      std::thread([&] { host->give_up(); }).join();
      meeting.meet();
      expect(!channel.has_stopped(1 - rank), "the other may still touch something");
      meeting.meet();
    }
    meeting.meet();
    expect(channel.has_stopped(1 - rank), "the other has left");
    expect(!HostChannel::Visit(channel), "no visit after the end");
    // A channel that is opened too late.
    HostChannel late(host, ranks_below(size), rank, 2, HostChannel::WokenBy::channel, 0);
    meeting.meet();
    expect(late.is_open() && late.has_stopped(1 - rank), "nothing is touched there either");
    meeting.meet();
  });
}

TEST_CASE("a channel that nobody is in stops at once when its rank gives up") {
  constexpr int size = 2;
  Meeting meeting(size);
  on_one_host(size, [&](int rank, const std::shared_ptr<HostMemory>& host) {
    HostChannel channel(host, ranks_below(size), rank, 1, HostChannel::WokenBy::channel, 0);
    meeting.meet();
    expect(channel.is_open() && !channel.has_stopped(1 - rank), "it is in use");
    meeting.meet();
    host->give_up();
    meeting.meet();
    expect(channel.has_stopped(1 - rank), "it has stopped, with no thread of the application");
    meeting.meet();
  });
}

// One thread visits the channel repeatedly while another gives up: it stops, and nothing is touched
// afterwards.
TEST_CASE("however a visit and the end of the world meet, nothing is touched after the stop") {
  constexpr int rounds = 200;
  on_one_host(1, [&](int, const std::shared_ptr<HostMemory>&) {});
  for (int round = 0; round < rounds; ++round) {
    Meeting meeting(2);
    std::atomic<std::uint64_t> touched{0};
    on_one_host(2, [&](int rank, const std::shared_ptr<HostMemory>& host) {
      HostChannel channel(host, ranks_below(2), rank, 1, HostChannel::WokenBy::channel, 0);
      meeting.meet();
      expect(channel.is_open(), "both have opened it");
      if (rank == 0) {
        std::thread worker([&] {
          for (;;) {
            const HostChannel::Visit visit(channel);
            if (!visit) return;
            touched.fetch_add(1);
          }
        });
        while (touched < static_cast<std::uint64_t>(round)) std::this_thread::yield();
        host->give_up();
        worker.join();
      } else {
        await([&] { return channel.has_stopped(0); }, "the other has stopped");
        const std::uint64_t before = touched;
        for (int look = 0; look < 100; ++look) std::this_thread::yield();
        expect(touched == before, "nothing is touched after the stop");
      }
      meeting.meet();
    });
  }
}

TEST_CASE("persistent operations of a broken world are dropped without waiting for each other") {
  constexpr int size = 3;
  constexpr int operations = 4;
  Meeting meeting(size);
  Options options;
  options.algorithm = "direct";
  run_engines(
      size, options,
      [&](int rank, Runtime& own) {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &own);
        std::vector<std::vector<float>> tensors(operations, std::vector<float>(count, 1));
        std::vector<OwnedPersistentRun> runs;
        for (auto& tensor : tensors) {
          const TensorView view{
              tensor.data(), {static_cast<std::int64_t>(count)}, DataType::float32};
          runs.push_back(PersistentAgreement(engine, view, tensor.data(), {}).make_run());
        }
        meeting.meet();
        // The last rank starts none, so that the others are in the middle of all.
        if (rank < size - 1) {
          for (auto& run : runs) run->start(std::nullopt);
        }
        meeting.meet();
        if (rank == size - 1) own.abort("enough");
        await([&] { return own.is_broken(); }, "the end of the world");
        const Time begin = Clock::now();
        if (rank == 1) std::reverse(runs.begin(), runs.end());
        // The last rank keeps its runs to the end.
        if (rank < size - 1) runs.clear();
        expect(Clock::now() - begin < one_wait, "nobody waits in vain");
        meeting.meet();
        for (auto& run : runs) {
          bool refused = false;
          try {
            run->start(std::nullopt);
          } catch (const Error&) {
            refused = true;
          }
          expect(refused, "nothing begins in a broken world");
        }
        runs.clear();
        expect(Clock::now() - begin < one_wait, "nobody waits in vain");
      },
      nullptr, Sharing::memory);
}

TEST_CASE("a run that waits hears that the world has ended") {
  constexpr int size = 2;
  Meeting meeting(size);
  Options options;
  options.algorithm = "direct";
  run_engines(
      size, options,
      [&](int rank, Runtime& own) {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &own);
        std::vector<float> tensor(count, 1);
        const TensorView view{tensor.data(), {static_cast<std::int64_t>(count)}, DataType::float32};
        const auto run = PersistentAgreement(engine, view, tensor.data(), {}).make_run();
        meeting.meet();
        if (rank == 1) return own.abort("enough");
        std::string error = "none";
        try {
          run->start(std::nullopt);  // may already know of the abort
          expect(run->wait_until(soon()), "an end of the wait");
        } catch (const PeerLostError& lost) {
          error = lost.what();
        }
        expect(error.find("enough") != std::string::npos, "the cause: " + error);
      },
      nullptr, Sharing::memory);
}

TEST_CASE("a run that needs a rank which has left in good order says so") {
  const auto elements = GENERATE(std::size_t{8}, std::size_t{5000}, count);
  const bool polls = GENERATE(false, true);
  constexpr int size = 3;
  Meeting meeting(size);
  run_engines(
      size, {},
      [&](int rank, Runtime& own) {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &own);
        std::vector<float> tensor(elements, 1);
        const TensorView view{
            tensor.data(), {static_cast<std::int64_t>(elements)}, DataType::float32};
        const auto run = PersistentAgreement(engine, view, tensor.data(), {}).make_run();
        meeting.meet();
        if (rank == 1) own.shutdown();
        for (int turn = 0; turn < 2 && rank != 1; ++turn) {
          std::string error = "none";
          try {
            run->start(std::nullopt);
            if (polls) await([&] { return run->done(); }, "an end");
            expect(polls || run->wait_until(soon()), "an end of the wait");
          } catch (const ShutdownError& left) {
            error = left.what();
            expect(left.peer() == 1, "who has left");
          }
          expect(error.find("rank 1 has shut down") != std::string::npos, "the cause: " + error);
        }
        meeting.meet();
      },
      nullptr, Sharing::memory);
}

TEST_CASE("who has no run yet is not taken for one that has left") {
  const bool polls = GENERATE(false, true);
  constexpr int size = 3;
  Meeting meeting(size);
  run_engines(
      size, {},
      [&](int rank, Runtime& own) {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &own);
        AllreduceOptions options;
        options.process_set.id = add_set(own, {0, 1});
        if (rank == 2) own.shutdown();
        meeting.meet();
        if (rank != 2) {
          await([&] { return !own.epoch().sets().departure().ok(); }, "the news of that");
          std::vector<float> tensor(8, static_cast<float>(rank));
          const TensorView view{tensor.data(), {8}, DataType::float32};
          PersistentAgreement agreement(engine, view, tensor.data(), options);
          agreement.handle().wait();
          if (rank == 1) std::this_thread::sleep_for(50ms);
          const auto run = agreement.make_run();
          run->start(std::nullopt);
          if (polls) await([&] { return run->done(); }, "an end");
          expect(polls || run->wait_until(soon()), "an end of the wait");
          expect(tensor == std::vector<float>(8, 0.5F), "the average");
        }
        meeting.meet();
      },
      nullptr, Sharing::memory);
}

TEST_CASE("a run that all have started is done, also where one has left since") {
  constexpr int size = 3;
  Meeting meeting(size);
  run_engines(
      size, {},
      [&](int rank, Runtime& own) {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &own);
        std::vector<float> tensor(8, static_cast<float>(rank));
        const TensorView view{tensor.data(), {8}, DataType::float32};
        const auto run = PersistentAgreement(engine, view, tensor.data(), {}).make_run();
        meeting.meet();  // a start does not reach ranks without a run
        if (rank != 2) run->start(std::nullopt);
        meeting.meet();
        if (rank == 1) own.shutdown();
        meeting.meet();
        await([&] { return rank == 1 || !own.epoch().sets().departure().ok(); },
              "the news of that");
        if (rank == 0) expect(!run->wait_until(Clock::now() + 200ms), "one is late");
        meeting.meet();
        if (rank == 2) run->start(std::nullopt);
        if (rank != 1) {
          expect(run->wait_until(soon()), "an end of the wait");
          expect(tensor == std::vector<float>(8, 1), "the average");
        }
        meeting.meet();
      },
      nullptr, Sharing::memory);
}

TEST_CASE("a handle that is dropped open completes with an error") {
  const auto state = std::make_shared<HandleState>();
  const auto other = std::make_shared<HandleState>();
  {
    OpenHandle handle(state);
    OpenHandle moved(std::move(handle));
    CHECK_FALSE(handle);
    CHECK_FALSE(state->is_done());
    moved = OpenHandle(other);
    CHECK(state->is_done());
    CHECK(state->status.code() == ErrorCode::internal);
    moved->complete({});
  }
  CHECK(other->status.ok());
}

}  // namespace rueda::test::broken_world_test
