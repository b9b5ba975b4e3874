// Which path GPU tensors take, and that all paths give the same results.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/gpu/gpu_peer_info.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_paths_test {
namespace {

GpuPeerInfo info_of(const std::string& gpu) {
  GpuPeerInfo info;
  info.has_gpu = info.has_nccl = true;
  info.nccl_version = 22800;
  write_text(info.host, "a machine");
  write_text(info.gpu, gpu);
  return info;
}

GpuWorld world_of(int size, const std::string& backend) {
  GpuWorld world{size, Gpus::own, Sharing::nothing};
  world.options.gpu_backend = backend;
  return world;
}

}  // namespace

TEST_CASE("NCCL is taken where all have the same version of it and a GPU each") {
  const std::vector<int> members{0, 2, 3};
  std::vector<GpuPeerInfo> infos{info_of("a"), info_of("b"), info_of("c")};
  auto all = choose_path(infos, members, "auto");
  REQUIRE(all.ok());
  CHECK(all->path == GpuPath::nccl);
  CHECK(all->why_not_nccl.empty());
  CHECK(choose_path(infos, members, "staged")->path == GpuPath::staged);

  infos[2].nccl_version = 22700;
  auto choice = choose_path(infos, members, "auto");
  REQUIRE(choice.ok());
  CHECK(choice->path == GpuPath::staged);
  CHECK(contains(choice->why_not_nccl, "rank 0 has NCCL 2.28.0, rank 3 has NCCL 2.27.0"));
  const auto versions = choose_path(infos, members, "nccl");
  CHECK(versions.status().code() == ErrorCode::unsupported);
  CHECK(contains(versions.status(), "RUEDA_GPU_BACKEND=nccl, but rank 0 has NCCL 2.28.0"));

  infos[2] = info_of("b");
  CHECK(contains(choose_path(infos, members, "nccl").status(), "ranks 2 and 3 share the GPU b"));
  CHECK(contains(choose_path(infos, members, "nccl").status(), "NCCL_MULTI_RANK_GPU_ENABLE=1"));
  infos[2].may_share = true;
  CHECK_FALSE(choose_path(infos, members, "nccl").ok());  // both must allow it
  infos[1].may_share = true;
  CHECK(choose_path(infos, members, "nccl")->path == GpuPath::nccl);
  infos[2] = info_of("b");
  write_text(infos[2].host, "another machine");
  CHECK(choose_path(infos, members, "nccl")->path == GpuPath::nccl);
}

// NCCL reports its version when loaded, once for each path.
TEST_CASE("ranks that share a GPU go by NCCL where it and its user allow that") {
  const bool allows = GENERATE(true, false);
  const NcclFixture fixture({.version = 23000});
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  GpuWorld world{2, Gpus::shared};
  world.options.gpu_sharing = allows ? "on" : "off";
  world.options.nccl_library = std::string(RUEDA_NCCL_DOUBLE).insert(0, "/./");
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(8, 1));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x")));
    expect(gpu.read<float>(memory.data(), 8) == std::vector<float>(8, 2), "the sum");
    expect(gpu.engine.metrics().values().at("nccl_calls") == (allows ? 1 : 0), "by NCCL or not");
    gpu.drain();
  });
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST_CASE("what is staged may have more chunks than there are slots for them") {
  const NcclFixture fixture({}, 5);
  run_gpu_engines(world_of(2, "staged"), [&](GpuEngine& gpu) {
    constexpr std::size_t elements = 6000000;
    const DeviceMemory memory = gpu.tensor(filled<float>(elements, gpu.rank()));
    gpu.finish(gpu.submit(gpu.allreduce(memory, elements, DataType::float32, "x")));
    expect(gpu.read<float>(memory.data(), elements) == summed<float>(elements, 2), "the sum");
    gpu.drain();
  });
}

TEST_CASE("16-bit tensors, products, and what is narrowed and scaled") {
  const NcclFixture fixture;
  const std::string backend = GENERATE("auto", "staged");
  run_gpu_engines(world_of(3, backend), [&](GpuEngine& gpu) {
    const DeviceMemory half = gpu.tensor(std::vector<std::uint16_t>(333, 0x3E00));  // 1.5
    const DeviceMemory factors =
        gpu.tensor(std::vector<double>(10, static_cast<double>(gpu.rank() + 1)));
    const DeviceMemory wide = gpu.tensor(std::vector<double>(500, 0.25 * (gpu.rank() + 1)));
    const Handle one = gpu.submit(gpu.allreduce(half, 333, DataType::float16, "half"));
    const Handle two =
        gpu.submit(gpu.allreduce(factors, 10, DataType::float64, "product", ReduceOp::product));
    Submission narrowed = gpu.allreduce(wide, 500, DataType::float64, "narrow");
    narrowed.request.wire = DataType::bfloat16;
    narrowed.request.postscale = 2;
    const Handle three = gpu.submit(std::move(narrowed));
    for (const Handle& handle : {one, two, three}) gpu.finish(handle);
    expect(gpu.read<std::uint16_t>(half.data(), 333) == std::vector<std::uint16_t>(333, 0x4480),
           "4.5");
    expect(gpu.read<double>(factors.data(), 10) == std::vector<double>(10, 6), "3!");
    expect(gpu.read<double>(wide.data(), 500) == std::vector<double>(500, 3), "twice 1.5");
    gpu.drain();
  });
}

TEST_CASE("without the kernels what is narrowed is staged, and the rest is not") {
  const NcclFixture fixture({}, 0, false);
  run_gpu_engines(world_of(4, "auto"), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(filled<float>(1000, gpu.rank()));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 1000, DataType::float32, "x")));
    expect(gpu.read<float>(memory.data(), 1000) == summed<float>(1000, 4), "the sum");
    expect(gpu.engine.metrics().values().at("nccl_calls") == 1, "by NCCL");
    const DeviceMemory other = gpu.tensor(filled<float>(1000, gpu.rank()));
    Submission narrowed = gpu.allreduce(other, 1000, DataType::float32, "narrow");
    narrowed.request.wire = DataType::bfloat16;
    gpu.finish(gpu.submit(std::move(narrowed)));
    expect(gpu.read<float>(other.data(), 1000) == summed<float>(1000, 4), "the other sum");
    expect(gpu.engine.metrics().values().at("nccl_calls") == 1, "not by NCCL");
    gpu.drain();
  });
}

TEST_CASE("process sets that overlap reduce on GPUs side by side") {
  const NcclFixture fixture;
  const std::string backend = GENERATE("auto", "staged");
  run_gpu_engines(world_of(4, backend), [&](GpuEngine& gpu) {
    const int three = add_set(gpu.engine, {0, 1, 3});
    const int two = add_set(gpu.engine, {2, 3});
    for (int round = 0; round < 5; ++round) {
      const DeviceMemory first = gpu.tensor(filled<float>(3000, gpu.rank()));
      const DeviceMemory second = gpu.tensor(filled<float>(3000, gpu.rank()));
      std::vector<Handle> handles;
      if (gpu.rank() != 2) {
        handles.push_back(test::submit(
            gpu.engine, gpu.allreduce(first, 3000, DataType::float32, "a", ReduceOp::max), three));
      }
      if (gpu.rank() >= 2) {
        handles.push_back(test::submit(
            gpu.engine, gpu.allreduce(second, 3000, DataType::float32, "b", ReduceOp::min), two));
      }
      for (const Handle& handle : handles) gpu.finish(handle);
      if (gpu.rank() != 2) {
        expect(gpu.read<float>(first.data(), 3000) == filled<float>(3000, 3), "of three");
      }
      if (gpu.rank() >= 2) {
        expect(gpu.read<float>(second.data(), 3000) == filled<float>(3000, 2), "of two");
      }
      gpu.drain();
    }
    remove_set(gpu.engine, three);
    remove_set(gpu.engine, two);
  });
}

}  // namespace rueda::test::gpu_paths_test
