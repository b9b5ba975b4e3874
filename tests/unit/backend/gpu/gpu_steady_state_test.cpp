// The host's cost of a batch in steady state, in calls of the driver and of NCCL.
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_steady_state_test {
namespace {

constexpr int batches = 50;

struct Calls {
  int driver = 0;
  int events_made = 0;
  int events_asked_for = 0;
  int allocations = 0;
  int launches = 0;
  int nccl = 0;

  static Calls now() {
    CudaDouble& driver = cuda_double();
    return {driver.calls(),
            driver.calls_of("cuEventCreate") + driver.calls_of("cuEventDestroy_v2"),
            driver.calls_of("cuEventQuery"),
            driver.calls_of("cuMemAlloc_v2"),
            driver.calls_of("cuLaunchKernel"),
            static_cast<int>(nccl_double().calls(0).size())};
  }
  [[nodiscard]] Calls since(const Calls& before) const {
    return {driver - before.driver,
            events_made - before.events_made,
            events_asked_for - before.events_asked_for,
            allocations - before.allocations,
            launches - before.launches,
            nccl - before.nccl};
  }
};

// Calls of the first `batches` batches on one rank that create no new event: by then earlier events
// have been recycled, a few at a time.
Calls steady_calls(const std::function<Handle(GpuEngine&)>& work) {
  Calls calls;
  run_gpu_engines({.size = 1}, [&](GpuEngine& gpu) {
    const Time end = soon();
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      const Calls before = Calls::now();
      Handle last;
      for (int batch = 0; batch < batches; ++batch) last = work(gpu);
      calls = Calls::now().since(before);
      gpu.finish(last);
      gpu.drain();
    } while (calls.events_made > 0 && Clock::now() < end);
  });
  return calls;
}

}  // namespace

TEST_CASE("a tensor that is reduced where it lies takes few calls of the driver") {
  const NcclFixture fixture;
  DeviceMemory memory;
  const Calls calls = steady_calls([&](GpuEngine& gpu) {
    if (memory.size() == 0) memory = gpu.tensor(std::vector<float>(100, 1));
    Handle handle = gpu.submit(gpu.allreduce(memory, 100, DataType::float32, "a"));
    gpu.finish(handle);
    return handle;
  });
  memory = {};
  CHECK(calls.events_made == 0);
  CHECK(calls.allocations == 0);
  CHECK(calls.launches == 0);
  CHECK(calls.nccl == batches);
  // Submitting: making the device current and restoring (2), querying capture, an event. The thread
  // that calls NCCL holds the device: a wait for that event, and another event. The result: the
  // device (2), a wait for the second event. Checking for completed batches comes on top; it takes
  // the device and the capture mode, too.
  const int of_looks = 6 * calls.events_asked_for;
  CHECK(calls.driver <= batches * 9 + of_looks);
}

TEST_CASE("a packed batch takes two launches more, however many tensors it has") {
  const NcclFixture fixture;
  std::vector<DeviceMemory> memory;
  const int tensors = GENERATE(2, 30);
  const Calls calls = steady_calls([&](GpuEngine& gpu) {
    std::vector<Submission> group;
    for (int i = 0; i < tensors; ++i) {
      const auto number = static_cast<std::size_t>(i);
      if (memory.size() == number) memory.push_back(gpu.tensor(std::vector<float>(100, 1)));
      group.push_back(gpu.allreduce(memory[number], 100, DataType::float32, str("t", i)));
      group.back().request.group = "g";
      group.back().request.group_size = tensors;
    }
    const std::vector<Handle> handles = gpu.engine.submit(0, std::move(group));
    for (const Handle& handle : handles) test::finish(handle);
    gpu.finish(handles.back());
    return handles.back();
  });
  memory.clear();
  CHECK(calls.events_made == 0);
  CHECK(calls.allocations == 0);
  CHECK(calls.launches == 2 * batches);
  CHECK(calls.nccl == batches);
  CHECK(calls.driver <= batches * (9 + 2) + 6 * calls.events_asked_for);
}

}  // namespace rueda::test::gpu_steady_state_test
