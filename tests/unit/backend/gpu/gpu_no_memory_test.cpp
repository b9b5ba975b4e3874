// One rank lacks memory of its GPU or of the host: the operation fails on all ranks, which learn
// where and how much was wanted, and the world continues.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/memory_release.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_no_memory_test {
namespace {

constexpr int out_of_memory = 2;  // a CUresult
constexpr std::size_t elements = 1000;

GpuWorld world_of(int size, const std::string& backend) {
  GpuWorld world;
  world.size = size;
  world.options.gpu_backend = backend;
  return world;
}

// An operation whose result the engine allocates: `elements` floats for, or from, each rank.
Submission operation(const GpuEngine& gpu, Collective collective, const DeviceMemory& memory,
                     int size, const std::string& name) {
  const auto all = static_cast<std::int64_t>(elements) * size;
  const std::int64_t rows =
      collective == Collective::allgather ? static_cast<std::int64_t>(elements) : all;
  Submission made = gpu.submission(collective, memory, {rows}, DataType::float32, name);
  made.output = nullptr;
  if (collective == Collective::alltoall)
    made.rows.assign(static_cast<std::size_t>(size), static_cast<std::int64_t>(elements));
  return made;
}

std::size_t result_bytes(Collective collective, int size) {
  const std::size_t part = elements * sizeof(float);
  return collective == Collective::reduce_scatter ? part : part * static_cast<std::size_t>(size);
}

void expect_result(const GpuEngine& gpu, const Handle& handle, Collective collective, int size) {
  gpu.finish(handle);
  const bool sums = collective == Collective::reduce_scatter;
  const auto values = result_bytes(collective, size) / sizeof(float);
  expect(gpu.read<float>(handle.output().data.get(), values) ==
             std::vector<float>(values, static_cast<float>(sums ? size : 1)),
         "the result");
}

void expect_shortage(const std::string& error, const std::string& name, int rank,
                     const std::string& what) {
  for (const std::string& part : {str("'", name, "'"), str("rank ", rank, " has no memory"), what})
    expect(contains(error, part), str("'", error, "' tells ", part));
}

void expect_still_works(const GpuEngine& gpu, int size) {
  const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
  gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "still")));
  expect(gpu.read<float>(memory.data(), 8) == std::vector<float>(8, static_cast<float>(size)),
         "the world goes on");
  expect(gpu.engine.refusal().ok(), gpu.engine.refusal().to_string());
  gpu.drain();
}

}  // namespace

TEST_CASE("a result that one rank cannot allocate fails on all, and the next one is there") {
  const Collective collective =
      GENERATE(Collective::allgather, Collective::reduce_scatter, Collective::alltoall);
  const std::string backend = GENERATE("nccl", "staged");
  const int size = GENERATE(1, 3);
  const int nth = GENERATE(1, 3);
  INFO(name_of(collective) << ", " << backend << ", " << size << " ranks, allocation " << nth);
  const NcclFixture fixture({}, 3);
  const int poor = size - 1;
  cuda_double().fail_on(poor, "cuMemAllocFromPoolAsync", nth, out_of_memory);
  run_gpu_engines(world_of(size, backend), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 3, 1));
    gpu.drain();
    for (int round = 1; round <= 4; ++round) {  // later rounds are replayed
      const Handle handle = gpu.submit(operation(gpu, collective, memory, size, "a"));
      if (round != nth) {
        expect_result(gpu, handle, collective, size);
        continue;
      }
      expect_shortage(
          gpu.error_of(handle), "a", poor,
          str("allocating ", result_bytes(collective, size), " bytes (cuMemAllocFromPoolAsync)"));
    }
    expect_still_works(gpu, size);
  });
}

TEST_CASE("results under way are not disturbed by one that cannot be allocated") {
  const NcclFixture fixture({}, 8);
  cuda_double().fail_on(0, "cuMemAllocFromPoolAsync", 3, out_of_memory);
  run_gpu_engines(world_of(2, "nccl"), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 3, 1));
    gpu.drain();
    std::vector<Handle> handles;
    for (const char* name : {"a", "b", "c", "d", "e"})
      handles.push_back(gpu.submit(operation(gpu, Collective::allgather, memory, 2, name)));
    int failed = 0;
    for (const Handle& handle : handles) {
      if (gpu.error_of(handle) == "none") {
        expect_result(gpu, handle, Collective::allgather, 2);
      } else {
        ++failed;
      }
    }
    expect(failed == 1, "one of them");
    expect_still_works(gpu, 2);
  });
}

// Ranks that bring output memory wait for those that do not.
TEST_CASE("a rank that allocates is waited for by one that has brought its memory") {
  const std::string backend = GENERATE("nccl", "staged");
  const Collective collective =
      GENERATE(Collective::allgather, Collective::reduce_scatter, Collective::alltoall);
  const NcclFixture fixture;
  cuda_double().fail_on(1, "cuMemAllocFromPoolAsync", 2, out_of_memory);
  run_gpu_engines(world_of(2, backend), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 2, 1));
    const DeviceMemory room = gpu.tensor(std::vector<float>(elements * 2, -1));
    const std::size_t bytes = result_bytes(collective, 2);
    gpu.drain();
    for (int round = 1; round <= 6; ++round) {
      // Rank 0 always brings memory, rank 1 in rounds 1 and 5, so that rank 1 allocates in rounds
      // 2, 3, 4 and 6.
      Submission made = operation(gpu, collective, memory, 2, "a");
      if (gpu.rank() == 0 || round == 1 || round == 5) {
        made.output = room.data();
        made.request.output_bytes = bytes;
      }
      const Handle handle = gpu.submit(std::move(made));
      if (round == 3) {
        expect_shortage(gpu.error_of(handle), "a", 1, str("allocating ", bytes, " bytes"));
        continue;
      }
      gpu.finish(handle);
      const auto expected = static_cast<float>(collective == Collective::reduce_scatter ? 2 : 1);
      const std::byte* const result =
          handle.output().data ? handle.output().data.get() : room.data();
      expect(gpu.read<float>(result, bytes / 4) == std::vector<float>(bytes / 4, expected),
             "the result");
    }
    expect_still_works(gpu, 2);
  });
}

TEST_CASE("what no rank has to allocate is not asked for") {
  const std::string backend = GENERATE("nccl", "staged");
  const NcclFixture fixture;
  run_gpu_engines(world_of(2, backend), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 2, 1));
    const DeviceMemory room = gpu.tensor(std::vector<float>(elements * 2, -1));
    gpu.drain();
    for (const Collective collective :
         {Collective::allgather, Collective::reduce_scatter, Collective::alltoall}) {
      for (int round = 0; round < 3; ++round) {
        Submission made = operation(gpu, collective, memory, 2, std::string(name_of(collective)));
        made.output = room.data();
        made.request.output_bytes = result_bytes(collective, 2);
        gpu.finish(gpu.submit(std::move(made)));
      }
    }
    gpu.drain();
  });
  CHECK(cuda_double().calls_of("cuMemAllocFromPoolAsync") == 0);
}

TEST_CASE("a rank that has joined and cannot allocate fails the operation of the others") {
  const Collective collective =
      GENERATE(Collective::allgather, Collective::broadcast, Collective::reduce_scatter);
  const NcclFixture fixture;
  run_gpu_engines(world_of(3, "nccl"), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 3, 1));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "all have a GPU")));
    gpu.drain();
    if (gpu.rank() == 1) cuda_double().fail_on(1, "cuMemAllocFromPoolAsync", 1, out_of_memory);
    if (gpu.rank() != 1) {
      Submission made = operation(gpu, collective, memory, 3, "a");
      if (collective == Collective::broadcast) {
        made.request.root = 0;
        made.output = memory.data();
      }
      expect_shortage(gpu.error_of(gpu.submit(std::move(made))), "a", 1, "allocating");
    }
    test::finish(gpu.engine.join(0));
    expect_still_works(gpu, 3);
  });
}

TEST_CASE("memory of the host that one rank cannot pin fails the operation on all") {
  const Collective collective = GENERATE(Collective::allreduce, Collective::allgather);
  const NcclFixture fixture;
  for (const char* function : {"cuMemHostRegister_v2", "cuMemHostAlloc"})
    cuda_double().fail_on(1, function, 1, out_of_memory);
  run_gpu_engines(world_of(2, "staged"), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements * 2, 1));
    gpu.drain();
    const auto submit = [&] {
      return collective == Collective::allreduce
                 ? gpu.submit(gpu.allreduce(memory, elements, DataType::float32, "a"))
                 : gpu.submit(operation(gpu, collective, memory, 2, "a"));
    };
    expect_shortage(gpu.error_of(submit()), "a", 1, "cuMemHostAlloc");
    gpu.finish(submit());
    gpu.drain();
    expect_still_works(gpu, 2);
  });
}

TEST_CASE("whoever keeps memory is asked for it before a result fails") {
  const NcclFixture fixture;
  int asked = 0;
  set_memory_release([&](int) { ++asked; });
  cuda_double().fail_on(1, "cuMemAllocFromPoolAsync", 1, out_of_memory);
  run_gpu_engines(world_of(2, "nccl"), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(elements, 1));
    expect_result(gpu, gpu.submit(operation(gpu, Collective::allgather, memory, 2, "a")),
                  Collective::allgather, 2);
    gpu.drain();
  });
  set_memory_release(nullptr);
  CHECK(asked == 1);
}

}  // namespace rueda::test::gpu_no_memory_test
