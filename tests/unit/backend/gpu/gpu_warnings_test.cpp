// What keeps GPU tensors from NCCL, or from being reduced at all, is reported with the reason and
// the remedy: once as a warning if another path does the work, else as an error on all ranks.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ranks/gpu_engine_ranks.h"
#include "unit/captured_log.h"

namespace rueda::test::gpu_warnings_test {
namespace {

// A path from which a double has not been loaded yet: success is cached by path.
std::string fresh(std::string path) {
  static int number = 0;
  std::string prefix = "/";
  for (int i = ++number; i > 0; --i) prefix += "./";
  return path.replace(path.rfind('/'), 1, prefix);
}

// Runs three allreduces on two ranks, requires correct results and returns the log.
std::string log_of(const GpuWorld& world) {
  const CapturedLog log;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    for (int round = 0; round < 3; ++round) {
      const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
      gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, str("t", round))));
      expect(gpu.read<float>(memory.data(), 8) == std::vector<float>(8, 2), "the sum");
      gpu.drain();
    }
    expect(gpu.engine.metrics().values().at("nccl_calls") == 0, "not by NCCL");
  });
  CHECK(log.lines("warning", "go through host memory, not NCCL") == 1);
  return log.text();
}

}  // namespace

TEST_CASE("ranks without NCCL say once what was tried and what to install") {
  const NcclFixture fixture;
  GpuWorld world;
  world.options.nccl_library = "/nowhere/libnccl.so.2";
  const std::string text = log_of(world);
  CHECK(contains(text, "rank 0 has no NCCL"));
  CHECK(contains(text, "pip install nvidia-nccl-cu13"));
}

TEST_CASE("an NCCL that is too old is said once, with both versions and the remedy") {
  const NcclFixture fixture({.version = 22605});
  GpuWorld world;
  world.options.nccl_library = fresh(RUEDA_NCCL_DOUBLE);
  const std::string text = log_of(world);
  CHECK(contains(text, "NCCL 2.26.5"));
  CHECK(contains(text, "needs 2.27.0 or newer"));
  CHECK(contains(text, "pip install -U nvidia-nccl-cu13"));
}

TEST_CASE("ranks that have not chosen a GPU each are told so once, with the call that does") {
  const NcclFixture fixture;
  const std::string text = log_of({2, Gpus::shared});
  CHECK(contains(text, "ranks 0 and 1 share the GPU"));
  CHECK(contains(text, "torch.cuda.set_device(local_rank)"));
}

TEST_CASE("what was asked for is no warning") {
  const NcclFixture fixture;
  GpuWorld world;
  world.options.gpu_backend = "staged";
  const CapturedLog log;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x")));
    gpu.drain();
  });
  CHECK(log.lines("warning", "") == 0);
}

TEST_CASE("what NCCL cannot do is said once to go through the host's memory") {
  const NcclFixture fixture;
  const CapturedLog log;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    for (const char* name : {"a", "b", "a"}) {
      const DeviceMemory memory = gpu.tensor(std::vector<std::int16_t>(8, 1));
      gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::int16, name)));
      gpu.drain();
    }
  });
  CHECK(log.lines("warning", "because NCCL cannot do it with the same results") == 1);
}

TEST_CASE("where no driver can be used an operation fails on all ranks, with the remedy") {
  const NcclFixture fixture;
  Options options = double_options();
  const DeviceReference of_the_test = CudaFixture::device();  // loads it in time
  std::vector<std::string> expected{"cannot take part in 'x'"};
  SECTION("there is none") {
    options.cuda_library = "/nowhere/libcuda.so.1";
    expected.emplace_back("Install NVIDIA's driver");
  }
  SECTION("it is too old") {
    options.cuda_library = fresh(RUEDA_CUDA_DOUBLE);
    cuda_double().reset({.version = 11080, .devices = 4});
    expected.emplace_back("is for CUDA 11.8; Rueda needs 12.2 or newer");
  }
  run_engines(
      2, options,
      [&](int rank, Runtime& engine) {
        const GpuEngine gpu(rank, rank, engine);
        const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
        for (int round = 0; round < 2; ++round) {
          const std::string error =
              gpu.error_of(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x")));
          for (const std::string& part : expected) expect(contains(error, part), error);
        }
        std::vector<float> host(4, 1);
        test::finish(test::submit(engine, allreduce_of(host, DataType::float32, "host")));
        expect(host == std::vector<float>(4, 2), "tensors of the host go on");
        gpu.drain();
      },
      nullptr, Sharing::memory);
}

}  // namespace rueda::test::gpu_warnings_test
