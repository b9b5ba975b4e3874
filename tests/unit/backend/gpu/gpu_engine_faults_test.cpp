// Faults that hit one GPU only, or late, and work that must not wait for other work.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "effort.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_engine_faults_test {
namespace {

using namespace std::chrono_literals;

// A barrier of all ranks.
void meet(GpuEngine& gpu, const std::string& name) {
  std::vector<float> nothing(1);
  test::finish(test::submit(gpu.engine, allreduce_of(nothing, DataType::float32, name)));
}

// Makes the group choose its path and connect its communicator.
void warm_up(GpuEngine& gpu) {
  const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
  gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "warm")));
  gpu.drain();
}

std::vector<Submission> grouped(Submission first, Submission second) {
  std::vector<Submission> members;
  members.push_back(std::move(first));
  members.push_back(std::move(second));
  for (Submission& member : members) {
    member.request.group = "g";
    member.request.group_size = static_cast<int>(members.size());
  }
  return members;
}

}  // namespace

TEST_CASE("after an error of one rank its next operation does not meet the others' last one") {
  for (int trial = 0; trial < effort(5, 2); ++trial) {
    const NcclFixture fixture;
    GpuWorld world{2};
    world.options.fusion_threshold = 32;
    run_gpu_engines(world, [&](GpuEngine& gpu) {
      warm_up(gpu);
      const DeviceMemory first = gpu.tensor(std::vector<float>(4, 1));
      const DeviceMemory second = gpu.tensor(std::vector<float>(4, 1));
      const DeviceMemory other = gpu.tensor(std::vector<float>(8, 100));
      gpu.drain();
      meet(gpu, "before");
      if (gpu.rank() == 0) {
        nccl_double().fail("ncclCommWindowRegister", 0, 1, nccl::system_error, "no window");
      }
      meet(gpu, "after");
      const auto handles =
          gpu.engine.submit(0, grouped(gpu.allreduce(first, 4, DataType::float32, "a"),
                                       gpu.allreduce(second, 4, DataType::float32, "b")));
      const Handle next = gpu.submit(gpu.allreduce(other, 8, DataType::float32, "x"));
      (void)gpu.error_of(handles[0]);
      (void)gpu.error_of(next);
      const Time end = soon();
      while (gpu.engine.refusal().ok() && Clock::now() < end) std::this_thread::sleep_for(1ms);
      for (const Handle& handle : handles) outlast(handle);
      outlast(next);
      gpu.drain();
      expect(gpu.read<float>(first.data(), 4)[0] < 3, "no other operation's elements");
    });
  }
}

TEST_CASE("the last operation is looked after, also where it had to wait for its turn") {
  const NcclFixture fixture;
  GpuWorld world{2};
  world.options.transfer_timeout = 3;  // longer than any operation takes under a sanitizer
  constexpr std::size_t elements = effort(4'000'000, 1'500'000);  // in several parts
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    warm_up(gpu);
    const DeviceMemory large = gpu.tensor(std::vector<std::int32_t>(elements, 1));
    const DeviceMemory small = gpu.tensor(std::vector<float>(8, 1));
    gpu.drain();
    meet(gpu, "before");
    if (gpu.rank() == 0) nccl_double().hang(1);
    meet(gpu, "after");
    // The first goes through the host; the second follows by NCCL.
    const auto handles = gpu.engine.submit(
        0, grouped(gpu.allreduce(large, elements, DataType::int32, "a", ReduceOp::average),
                   gpu.allreduce(small, 8, DataType::float32, "x")));
    for (const Handle& handle : handles) (void)handle.wait_for(soon() - Clock::now());
    const Time end = soon();
    while (gpu.engine.refusal().ok() && Clock::now() < end) std::this_thread::sleep_for(1ms);
    const std::string why = gpu.engine.refusal().to_string();
    expect(why.find("has not finished a batch") != std::string::npos, why);
    // The world refuses new work a moment before it gives up pending work.
    while (gpu.error_of(handles[1]) == "none" && Clock::now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    expect(gpu.error_of(handles[1]) != "none", "what has been given up is not a result");
    for (const Handle& handle : handles) outlast(handle);
    gpu.drain();
  });
}

TEST_CASE("a rank that joins without ever having used a GPU is named, and the world goes on") {
  const Collective collective = GENERATE(Collective::allreduce, Collective::broadcast,
                                         Collective::allgather, Collective::reduce_scatter);
  const NcclFixture fixture;
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(6, 1));
    if (gpu.rank() != 1) {
      Submission submission = gpu.submission(collective, memory, {6}, DataType::float32, "x");
      if (collective == Collective::broadcast) submission.request.root = 0;
      const std::string error = gpu.error_of(gpu.submit(std::move(submission)));
      expect(error.find("rank 1 takes part without a GPU") != std::string::npos, error);
    }
    test::finish(gpu.engine.join(0));
    meet(gpu, "still");
    gpu.drain();
  });
}

TEST_CASE("a handle that fails lets go of its tensor") {
  // Staged through the host in so many parts that the part that fails is not the last.
  constexpr std::size_t elements = effort(12'000'000, 8'000'000);
  for (int trial = 0; trial < effort(6, 2); ++trial) {
    const NcclFixture fixture({}, static_cast<std::uint64_t>(5 + trial));
    run_gpu_engines(
        {2, Gpus::shared, trial % 2 == 0 ? Sharing::memory : Sharing::nothing},
        [&](GpuEngine& gpu) {
          warm_up(gpu);
          auto memory = std::make_unique<DeviceMemory>(gpu.tensor(std::vector<float>(elements, 1)));
          gpu.drain();
          meet(gpu, "before");
          if (gpu.rank() == 0) {
            cuda_double().fail("cuMemcpyDtoHAsync_v2", 7 + trial, 999);
          }
          meet(gpu, "after");
          const Handle handle =
              gpu.submit(gpu.allreduce(*memory, elements, DataType::float32, "x"));
          std::string error = "none";
          try {
            test::finish(handle);
          } catch (const Error& failed) {
            error = failed.what();
          }
          memory.reset();  // the double notices any further use
          expect(error != "none", "an error");
        });
  }
}

TEST_CASE("an operation does not wait for what later ones wait for") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    warm_up(gpu);
    const DeviceMemory ready = gpu.tensor(std::vector<float>(8, 1));
    const DeviceMemory late = gpu.tensor(std::vector<double>(8, 1));
    const CudaStream other =
        take(CudaStream::create(CudaFixture::device(gpu.rank())), "another stream");
    gpu.drain();
    auto released = std::make_shared<std::atomic<bool>>(false);
    cuda_double().enqueue(other.handle(), [released] {
      while (!*released) std::this_thread::sleep_for(1ms);
    });
    auto members = grouped(gpu.allreduce(ready, 8, DataType::float32, "a"),
                           gpu.allreduce(late, 8, DataType::float64, "b"));
    members[1].stream = other.handle();
    const auto handles = gpu.engine.submit(0, std::move(members));
    gpu.finish(handles[0]);
    const auto result = gpu.read<float>(ready.data(), 8);  // must not wait for the deadline
    *released = true;
    expect(result == std::vector<float>(8, 2), "the sum");
    gpu.finish(handles[1]);
    gpu.drain();
    expect_ok(other.wait_until_idle(soon()), "the other stream");
  });
}

TEST_CASE("factors of 16-bit floats are not rounded before they multiply") {
  const NcclFixture fixture;
  const std::string backend = GENERATE("auto", "staged");
  GpuWorld world{3};
  world.options.gpu_backend = backend;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    constexpr std::uint16_t large = 0x7800;  // 32768
    const DeviceMemory memory = gpu.tensor(std::vector<std::uint16_t>(8, large));
    Submission submission = gpu.allreduce(memory, 8, DataType::float16, "t");
    submission.request.prescale = 1e-8;
    gpu.finish(gpu.submit(std::move(submission)));
    // NCCL gets 16-bit floats that are each rounded; the host rounds only the sum.
    const int sum = gpu.read<std::uint16_t>(memory.data(), 8)[0];
    expect(sum == (backend == "staged" ? 0x1407 : 0x1406), "3 * 32768e-8");
  });
}

}  // namespace rueda::test::gpu_engine_faults_test
