// GPU tensors through the whole engine, over NCCL and through host memory. The doubles of the CUDA
// driver and NCCL move the bytes, and delay them to expose missing waits.
#include <catch2/catch.hpp>
#include <numeric>

#include "effort.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_engine_test {
namespace {

// The paths that tensors take.
struct Path {
  std::string name;
  Gpus gpus = Gpus::own;
  Sharing sharing = Sharing::memory;
  std::string backend = "auto";
};

GpuWorld world_of(int size, const Path& path) {
  GpuWorld world{size, path.gpus, path.sharing, double_options()};
  world.options.gpu_backend = path.backend;
  return world;
}

const std::vector<Path> paths{{"nccl"},
                              {"nccl, hosts apart", Gpus::own, Sharing::nothing},
                              {"staged", Gpus::own, Sharing::memory, "staged"},
                              {"one GPU", Gpus::shared},
                              {"one GPU, ring", Gpus::shared, Sharing::nothing}};

}  // namespace

TEST_CASE("tensors of GPUs are reduced on every path, by any number of ranks") {
  const NcclFixture fixture({}, 7);
  const int size = GENERATE(from_range(efforts({1, 2, 3, 4}, {1, 3})));
  const Path& path = paths[GENERATE(range(std::size_t{0}, std::size_t{5}))];
  INFO(path.name << ", " << size << " ranks");
  run_gpu_engines(world_of(size, path), [&](GpuEngine& gpu) {
    for (int round = 0; round < effort(4, 3); ++round) {  // later rounds are replayed
      std::vector<DeviceMemory> memory;
      std::vector<Handle> handles;
      const std::vector<std::size_t> counts{0, 1, 3, 1000, 4097, effort(1500001, 70001)};
      for (const std::size_t count : counts) {
        memory.push_back(gpu.tensor(filled<float>(count, gpu.rank())));
        handles.push_back(gpu.submit(gpu.allreduce(memory.back(), count, DataType::float32,
                                                   "float." + std::to_string(count))));
      }
      memory.push_back(gpu.tensor(filled<std::int64_t>(333, gpu.rank())));
      handles.push_back(
          gpu.submit(gpu.allreduce(memory.back(), 333, DataType::int64, "int64", ReduceOp::max)));
      memory.push_back(gpu.tensor(filled<std::int32_t>(77, gpu.rank())));
      handles.push_back(gpu.submit(  // NCCL rounds differently
          gpu.allreduce(memory.back(), 77, DataType::int32, "int32", ReduceOp::average)));
      memory.push_back(gpu.tensor(filled<double>(501, gpu.rank())));
      Submission scaled =
          gpu.allreduce(memory.back(), 501, DataType::float64, "scaled", ReduceOp::average);
      scaled.request.prescale = 0.5;
      scaled.request.postscale = 4;
      handles.push_back(gpu.submit(std::move(scaled)));
      for (const Handle& handle : handles) gpu.finish(handle);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        expect(gpu.read<float>(memory[i].data(), counts[i]) == summed<float>(counts[i], size),
               "the sum of " + std::to_string(counts[i]));
      }
      expect(gpu.read<std::int64_t>(memory[6].data(), 333) == filled<std::int64_t>(333, size - 1),
             "the largest");
      auto averaged = summed<std::int32_t>(77, size);
      for (auto& value : averaged) value /= size;
      expect(gpu.read<std::int32_t>(memory[7].data(), 77) == averaged, "the average");
      const auto sum = summed<double>(501, size);
      const auto result = gpu.read<double>(memory[8].data(), 501);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        expect(std::abs(result[i] - sum[i] / size * 2) < 1e-12, "scaled");
      }
    }
  });
}

TEST_CASE("a batch of many tensors is packed, reduced and unpacked in a launch each") {
  const NcclFixture fixture;
  constexpr int tensors = 161;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    std::vector<DeviceMemory> memory;
    std::vector<Submission> group;
    for (int i = 0; i < tensors; ++i) {
      const auto count = static_cast<std::size_t>(i * i % 977 + 1);
      memory.push_back(gpu.tensor(filled<float>(count, gpu.rank())));
      group.push_back(gpu.allreduce(memory.back(), count, DataType::float32, std::to_string(i)));
      group.back().request.group = "g";
      group.back().request.group_size = tensors;
    }
    const auto handles = gpu.engine.submit(0, std::move(group));
    for (const Handle& handle : handles) gpu.finish(handle);
    for (int i = 0; i < tensors; ++i) {
      const auto count = static_cast<std::size_t>(i * i % 977 + 1);
      expect(gpu.read<float>(memory[static_cast<std::size_t>(i)].data(), count) ==
                 summed<float>(count, 2),
             "tensor " + std::to_string(i));
    }
    const auto metrics = gpu.engine.metrics().values();
    expect(metrics.at("nccl_calls") == 1, "one call");
    expect(metrics.at("gpu_launches") == 2, "two launches");
    expect(metrics.at("bytes_staged") == 0, "nothing through the host");
  });
}

TEST_CASE("elements travel as 16-bit floats between GPUs") {
  const NcclFixture fixture;
  const Path& path = paths[GENERATE(std::size_t{0}, std::size_t{3})];
  run_gpu_engines(world_of(2, path), [&](GpuEngine& gpu) {
    const DeviceMemory memory =
        gpu.tensor(std::vector<float>(5000, 1.5F + static_cast<float>(gpu.rank())));
    Submission submission = gpu.allreduce(memory, 5000, DataType::float32, "w", ReduceOp::average);
    submission.request.wire = DataType::bfloat16;
    submission.request.prescale = 2;
    gpu.finish(gpu.submit(std::move(submission)));
    expect(gpu.read<float>(memory.data(), 5000) == std::vector<float>(5000, 4.0F), "the average");
  });
}

TEST_CASE("the other collectives, with parts of any length") {
  const NcclFixture fixture({}, 3);
  const int size = GENERATE(from_range(efforts({1, 2, 3}, {1, 3})));
  const Path& path = paths[GENERATE(range(std::size_t{0}, std::size_t{5}))];
  INFO(path.name << ", " << size << " ranks");
  run_gpu_engines(world_of(size, path), [&](GpuEngine& gpu) {
    const int rank = gpu.rank();
    for (int round = 0; round < 3; ++round) {
      for (const bool even : {true, false}) {
        // Rank r contributes r + 1 rows of two, or one row.
        const std::int64_t rows = even ? 1 : rank + 1;
        const auto count = static_cast<std::size_t>(rows * 2);
        const DeviceMemory own =
            gpu.tensor(std::vector<std::int16_t>(count, static_cast<std::int16_t>(rank)));
        const Handle gathered = gpu.submit(gpu.submission(Collective::allgather, own, {rows, 2},
                                                          DataType::int16, even ? "ge" : "gu"));
        gpu.finish(gathered);
        std::vector<std::int16_t> expected;
        for (int other = 0; other < size; ++other) {
          expected.insert(expected.end(), static_cast<std::size_t>(even ? 2 : 2 * (other + 1)),
                          static_cast<std::int16_t>(other));
        }
        expect(gathered.output().device == (path.gpus == Gpus::own ? rank : 0), "on the GPU");
        expect(gpu.read<std::int16_t>(gathered.output().data.get(), expected.size()) == expected,
               "gathered");

        // The same number of rows for each rank, or r + 1 rows for rank r.
        std::vector<std::int64_t> splits;
        for (int other = 0; other < size; ++other) splits.push_back(even ? 3 : other + 1);
        const auto total = static_cast<std::size_t>(
            std::accumulate(splits.begin(), splits.end(), std::int64_t{0}));
        const DeviceMemory all = gpu.tensor(filled<float>(total, rank));
        Submission scatter =
            gpu.submission(Collective::reduce_scatter, all, {static_cast<std::int64_t>(total)},
                           DataType::float32, even ? "se" : "su");
        scatter.output = nullptr;
        scatter.request.splits = splits;
        const Handle scattered = gpu.submit(std::move(scatter));
        gpu.finish(scattered);
        const auto sum = summed<float>(total, size);
        const auto first = std::accumulate(splits.begin(), splits.begin() + rank, std::int64_t{0});
        const auto own_rows = static_cast<std::size_t>(splits[static_cast<std::size_t>(rank)]);
        expect(gpu.read<float>(scattered.output().data.get(), own_rows) ==
                   std::vector<float>(sum.begin() + first,
                                      sum.begin() + first + static_cast<std::int64_t>(own_rows)),
               "scattered");
      }

      const DeviceMemory shared =
          gpu.tensor(std::vector<double>(100, rank == size - 1 ? 42.0 + round : 0.0));
      Submission broadcast =
          gpu.submission(Collective::broadcast, shared, {100}, DataType::float64, "b");
      broadcast.request.root = size - 1;
      gpu.finish(gpu.submit(std::move(broadcast)));
      expect(gpu.read<double>(shared.data(), 100) == std::vector<double>(100, 42.0 + round),
             "sent");

      // Rank r sends rank t its number, r + t times.
      std::vector<std::int64_t> rows;
      for (int target = 0; target < size; ++target) rows.push_back(rank + target);
      const auto sent = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
      const DeviceMemory mine =
          gpu.tensor(std::vector<std::int32_t>(static_cast<std::size_t>(sent), rank));
      Submission exchange =
          gpu.submission(Collective::alltoall, mine, {sent}, DataType::int32, "a");
      exchange.output = nullptr;
      exchange.rows = rows;
      const Handle exchanged = gpu.submit(std::move(exchange));
      gpu.finish(exchanged);
      std::vector<std::int32_t> expected;
      for (int source = 0; source < size; ++source) {
        expected.insert(expected.end(), static_cast<std::size_t>(source + rank), source);
      }
      expect(gpu.read<std::int32_t>(exchanged.output().data.get(), expected.size()) == expected,
             "exchanged");
      expect(exchanged.output().received_splits.size() == static_cast<std::size_t>(size), "splits");
    }
  });
}

TEST_CASE("what a stream still writes is waited for, and what it writes next comes after") {
  const NcclFixture fixture({}, 11);
  const Path& path = paths[GENERATE(std::size_t{0}, std::size_t{2}, std::size_t{3})];
  INFO(path.name);
  run_gpu_engines(world_of(2, path), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(100000, 0));
    for (int round = 1; round <= effort(20, 8); ++round) {
      // No host wait for the GPU in this loop.
      const std::vector<float> values(100000, static_cast<float>(round + gpu.rank()));
      expect_ok(copy_to_device(gpu.stream(), memory.data(),
                               reinterpret_cast<const std::byte*>(values.data()), memory.size()),
                "write");
      gpu.finish(gpu.submit(gpu.allreduce(memory, values.size(), DataType::float32, "t")));
      const auto result = gpu.read<float>(memory.data(), values.size());
      expect(result == std::vector<float>(values.size(), static_cast<float>(2 * round + 1)), "sum");
    }
  });
}

TEST_CASE("a rank that has joined gives what changes nothing") {
  const NcclFixture fixture;
  const Path& path = paths[GENERATE(std::size_t{0}, std::size_t{3})];
  const ReduceOp op = GENERATE(ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::product);
  run_gpu_engines(world_of(3, path), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(64, 3.0F));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 64, DataType::float32, "all")));
    const DeviceMemory first = gpu.tensor(std::vector<float>(64, 2.0F));
    const DeviceMemory second = gpu.tensor(std::vector<float>(10, 2.0F));
    if (gpu.rank() != 1) {
      const Handle one = gpu.submit(gpu.allreduce(first, 64, DataType::float32, "a", op));
      const Handle two = gpu.submit(gpu.allreduce(second, 10, DataType::float32, "b", op));
      gpu.finish(one);
      gpu.finish(two);
      const float expected = op == ReduceOp::sum || op == ReduceOp::product ? 4 : 2;
      expect(gpu.read<float>(first.data(), 64) == std::vector<float>(64, expected), "a");
      expect(gpu.read<float>(second.data(), 10) == std::vector<float>(10, expected), "b");
    }
    test::finish(gpu.engine.join(0));
    gpu.drain();
  });
}

TEST_CASE("a tensor that cannot be used fails on every rank, and the world goes on") {
  const NcclFixture fixture;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
    const auto reduce = [&](const auto& change) {
      Submission submission = gpu.allreduce(memory, 8, DataType::float32, "x");
      if (gpu.rank() == 1) change(submission);
      return gpu.error_of(gpu.submit(std::move(submission)));
    };
    std::vector<float> on_the_host(8, 1);
    const std::string mixed = reduce([&](Submission& submission) {
      submission = allreduce_of(on_the_host, DataType::float32, "x");
    });
    expect(contains(mixed, "device differs") && contains(mixed, "a GPU") &&
               contains(mixed, "the CPU") && contains(mixed, "'x'") &&
               contains(mixed, "all must be on GPUs, or all on the CPU"),
           mixed);
    const std::string none = reduce([](Submission& submission) { submission.device = 99; });
    expect(contains(none, "cuda:99") || contains(none, "99"), none);
    expect(reduce([](Submission&) {}) == "none", "the world goes on");
    const std::string other = reduce([](Submission& submission) { submission.device = 3; });
    expect(contains(other, "cuda:3") && contains(other, "one rank uses one GPU"), other);
    cuda_double().begin_capture(gpu.stream().handle());
    const std::string capturing = reduce([](Submission&) {});
    cuda_double().end_capture(gpu.stream().handle());
    expect(contains(capturing, "captured into a CUDA graph") &&
               contains(capturing, "persistent allreduce"),
           capturing);
    expect(reduce([](Submission&) {}) == "none", "the world still goes on");
    gpu.drain();
  });
}

TEST_CASE("two ranks on one GPU are refused by NCCL, with the choice that there is") {
  const NcclFixture fixture;
  GpuWorld world{2, Gpus::shared};
  world.options.gpu_backend = "nccl";
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
    for (int round = 0; round < 2; ++round) {
      const std::string error =
          gpu.error_of(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x")));
      expect(contains(error, "ranks 0 and 1 share the GPU") &&
                 contains(error, "RUEDA_GPU_BACKEND=staged"),
             error);
    }
    std::vector<float> host(4, 1);
    test::finish(test::submit(gpu.engine, allreduce_of(host, DataType::float32, "h")));
    expect(host.front() == 2, "the world goes on");
    gpu.drain();
  });
}

TEST_CASE("what NCCL says reaches every rank") {
  const NcclFixture fixture;
  nccl_double().fail("ncclAllReduce", 1, 2, nccl::system_error, "the link has gone");
  std::vector<DeviceMemory> tensors(3);  // the GPU may be at work until the engines have ended
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    expect_link_error(gpu, tensors[static_cast<std::size_t>(gpu.rank())], 8);
  });
}

TEST_CASE("a GPU that does not come to an end is given up") {
  const NcclFixture fixture;
  nccl_double().hang(1);
  GpuWorld world{2};
  world.options.transfer_timeout = 0.5;
  std::vector<DeviceMemory> tensors(2);
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    DeviceMemory& memory = tensors[static_cast<std::size_t>(gpu.rank())];
    memory = gpu.tensor(std::vector<float>(8, 1));
    std::string error = "none";
    const Time end = soon();
    for (int step = 0; error == "none" && Clock::now() < end; ++step) {
      const Handle handle = gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x"));
      try {
        test::finish(handle);
      } catch (const Error& given_up) {
        error = given_up.what();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    expect(contains(error, "RUEDA_TRANSFER_TIMEOUT") || contains(error, "has not finished"), error);
    gpu.drain();
  });
}

}  // namespace rueda::test::gpu_engine_test
