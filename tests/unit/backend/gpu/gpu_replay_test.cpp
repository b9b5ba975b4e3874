// Repeated operations on GPUs by ranks that share memory: they are executed again without
// negotiation, in one order with negotiated ones.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "effort.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_replay_test {
namespace {

std::int64_t count(const GpuEngine& gpu, const std::string& name) {
  return gpu.engine.metrics().values().at(name);
}

// Distinct lengths, so that NCCL's double detects ranks with different orders.
std::size_t length_of(int number) {
  return static_cast<std::size_t>(10 + 7 * number);
}

// Tensors that a rank has in flight, and their handles.
class InFlight {
 public:
  explicit InFlight(const GpuEngine& gpu) : gpu_(gpu) {}

  Submission make(const std::string& name, std::size_t length) {
    tensors_.push_back(gpu_.tensor(filled<float>(length, gpu_.rank())));
    lengths_.push_back(length);
    return gpu_.allreduce(tensors_.back(), length, DataType::float32, name);
  }
  void submit(const std::string& name, std::size_t length) {
    handles_.push_back(gpu_.submit(make(name, length)));
  }
  void submit_group(const std::string& name, const std::vector<int>& numbers) {
    std::vector<Submission> group;
    for (const int number : numbers) {
      group.push_back(make(str(name, number), length_of(number)));
      group.back().request.group = name;
      group.back().request.group_size = static_cast<int>(numbers.size());
    }
    for (const Handle& handle : gpu_.engine.submit(0, std::move(group))) handles_.push_back(handle);
  }
  void wait() const {
    for (const Handle& handle : handles_) gpu_.finish(handle);
    gpu_.drain();
  }
  void finish(int size, const std::string& what) const {
    wait();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      expect(gpu_.read<float>(tensors_[i].data(), lengths_[i]) == summed<float>(lengths_[i], size),
             what);
    }
  }

 private:
  const GpuEngine& gpu_;
  std::vector<DeviceMemory> tensors_;
  std::vector<std::size_t> lengths_;
  std::vector<Handle> handles_;
};

void sum(const GpuEngine& gpu, int size, const std::string& name, int number) {
  InFlight tensors(gpu);
  tensors.submit(name, length_of(number));
  tensors.finish(size, name);
}

}  // namespace

TEST_CASE("what repeats on GPUs takes no message") {
  const int size = GENERATE(from_range(efforts({2, 3, 4}, {3})));
  const NcclFixture fixture({}, 5);
  std::barrier counted(size);
  run_gpu_engines({.size = size}, [&](GpuEngine& gpu) {
    const auto step = [&] {
      for (int number = 0; number < 3; ++number) sum(gpu, size, str("t", number), number);
      InFlight group(gpu);
      group.submit_group("g", {3, 4, 5});
      group.finish(size, "a group");
    };
    for (int i = 0; i < 3; ++i) step();
    const std::int64_t messages = count(gpu, "control_messages_sent");
    const std::int64_t replayed = count(gpu, "plans_replayed");
    const std::int64_t nccl_calls = count(gpu, "nccl_calls");
    for (int i = 0; i < 10; ++i) step();
    expect(count(gpu, "control_messages_sent") == messages, "no message");
    expect(count(gpu, "plans_replayed") == replayed + 40, "four plans, ten times");
    expect(count(gpu, "nccl_calls") == nccl_calls + 40, "by NCCL");
    counted.arrive_and_wait();  // ranks that leave send messages
  });
}

TEST_CASE("something new on GPUs cancels what is replayed there, and nothing else") {
  const NcclFixture fixture;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    std::vector<float> of_host(5, 1);
    const auto on_host = [&] {
      of_host.assign(5, 1);
      test::finish(gpu.submit(allreduce_of(of_host, DataType::float32, "host")));
      expect(of_host[4] == 2, "the sum on the host");
    };
    for (int i = 0; i < 3; ++i) {
      sum(gpu, 2, "a", 1);
      on_host();
    }
    const std::int64_t off = count(gpu, "plans_cancelled");
    const std::int64_t replayed = count(gpu, "plans_replayed");
    on_host();
    expect(count(gpu, "plans_cancelled") == off, "nothing yet");
    sum(gpu, 2, "b", 2);
    on_host();
    expect(count(gpu, "plans_replayed") == replayed + 2, "the host's goes on");
    for (int i = 0; i < 3; ++i) sum(gpu, 2, "a", 1);
    expect(count(gpu, "plans_replayed") > replayed + 2, "and that of the GPU again");
  });
}

TEST_CASE("a mismatch on GPUs leaves what repeats as it is") {
  const NcclFixture fixture;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    for (int i = 0; i < 4; ++i) sum(gpu, 2, "a", 1);
    const DeviceMemory memory = gpu.tensor(std::vector<float>(10, 1));
    const std::string error = gpu.error_of(
        gpu.submit(gpu.allreduce(memory, gpu.rank() == 0 ? 9 : 10, DataType::float32, "a")));
    expect(contains(error, "'a'") && contains(error, "shape"), error);
    for (int i = 0; i < 4; ++i) sum(gpu, 2, "a", 1);
    gpu.drain();
  });
}

TEST_CASE("something new cancels all rounds that have been joined, however many") {
  constexpr int many = 300;
  const NcclFixture fixture;
  std::barrier joined(2);
  std::atomic<bool> replays{false};
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    const auto all = [&](InFlight& tensors) {
      for (int number = 0; number < many; ++number) {
        tensors.submit(str("t", number), length_of(number));
      }
    };
    // Grouping depends on timing: only groups that recur are learned.
    for (int i = 0; i < 100 && !replays; ++i) {
      const std::int64_t replayed = count(gpu, "plans_replayed");
      InFlight tensors(gpu);
      all(tensors);
      tensors.finish(2, "learned");
      joined.arrive_and_wait();
      if (gpu.rank() == 0) replays = count(gpu, "plans_replayed") > replayed;
      joined.arrive_and_wait();
    }
    expect(replays, "what repeats is replayed");
    const std::int64_t off = count(gpu, "plans_cancelled");
    InFlight tensors(gpu);
    if (gpu.rank() == 0) {
      all(tensors);
      tensors.submit("new", 5);
      // The other rank must not complete what this one may still have to submit.
      const Time limit = soon();
      while (count(gpu, "plans_cancelled") == off && Clock::now() < limit) {
        std::this_thread::yield();
      }
      joined.arrive_and_wait();
    } else {
      joined.arrive_and_wait();
      tensors.submit("new", 5);
      all(tensors);
    }
    tensors.finish(2, "negotiated again");
    joined.arrive_and_wait();
    if (gpu.rank() == 0) expect(count(gpu, "plans_cancelled") > off, "cancelled");
  });
}

// Each rank has its own order and timing of submissions, but all submit the same.
TEST_CASE("what is replayed and what is negotiated on GPUs comes in one order") {
  const int size = GENERATE(from_range(efforts({2, 3, 4}, {2, 3})));
  const unsigned seed = GENERATE(range(0U, effort(6U, 3U)));
  CAPTURE(size, seed);
  const NcclFixture fixture({}, seed + 1);
  GpuWorld world{size};
  world.options.fusion_threshold = seed % 2 == 0 ? 64 << 20 : 0;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    std::mt19937 shared(seed);
    std::mt19937 own(1000 * seed + static_cast<unsigned>(gpu.rank()));
    // A step in which a rank pauses between submissions is negotiated. Therefore more steps follow
    // without our pauses, which may be long on a busy machine.
    const Time deadline = soon();
    const int steps = effort(40, 25);
    const auto none = [&] { return count(gpu, "plans_replayed") == 0; };
    for (int step = 0; step < steps || (none() && Clock::now() < deadline); ++step) {
      const bool has_group = shared() % 3 != 0;
      const bool has_new = shared() % 5 == 0;
      const unsigned left_out = shared() % 8;
      std::vector<int> order(7);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), own);
      InFlight tensors(gpu);
      for (const int number : order) {
        if (number == static_cast<int>(left_out)) continue;
        if (step < steps && own() % 6 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(own() % 400));
        }
        if (number == 5) {
          if (has_group) tensors.submit_group("g", {8, 9});
        } else if (number == 6) {
          if (has_new) tensors.submit(str("new", step), length_of(10));
        } else {
          tensors.submit(str("t", number), length_of(number));
        }
      }
      tensors.finish(size, str("step ", step));
    }
    expect(count(gpu, "plans_replayed") > 0, "some were replayed");
  });
}

TEST_CASE("ranks that join early meet what the others still do on GPUs") {
  const NcclFixture fixture;
  run_gpu_engines({.size = 3}, [&](GpuEngine& gpu) {
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 3 + gpu.rank(); ++i) {
        InFlight tensors(gpu);
        tensors.submit("a", length_of(1));
        if (i < 3) {
          tensors.finish(3, "all are there");
          continue;
        }
        tensors.wait();
      }
      test::finish(gpu.engine.join(0));
    }
  });
}

}  // namespace rueda::test::gpu_replay_test
