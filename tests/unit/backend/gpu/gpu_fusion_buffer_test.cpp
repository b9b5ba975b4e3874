// Where tensors are packed for NCCL: in memory registered with NCCL if it can be registered.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "backend/gpu/fusion_buffer.h"
#include "core/memory_release.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_fusion_buffer_test {
namespace {

constexpr std::size_t mebibyte = 1 << 20;

std::byte* room(FusionBuffer& buffer, const GpuRank& mine, std::size_t bytes) {
  expect_ok(buffer.reserve(bytes, mine.library, mine.device), "reserve");
  expect_ok(buffer.register_with(*mine.communicator), "register");
  expect_ok(mine.communicator->wait_until_ready(soon()), "ready");
  return buffer.data();
}

std::int64_t calls_of(const std::string& function, int rank) {
  const auto calls = nccl_double().calls(rank);
  return std::count_if(calls.begin(), calls.end(),
                       [&](const NcclCall& call) { return call.function == function; });
}

// Reduces a group of tensors that is packed into `bytes`.
void reduce_packed(const GpuEngine& gpu, std::size_t bytes, const std::string& name) {
  const std::size_t count = bytes / sizeof(float) / 2;
  const DeviceMemory first = gpu.tensor(std::vector<float>(count, 1));
  const DeviceMemory second = gpu.tensor(std::vector<float>(count, 2));
  std::vector<Submission> group;
  group.push_back(gpu.allreduce(first, count, DataType::float32, name + ".1"));
  group.push_back(gpu.allreduce(second, count, DataType::float32, name + ".2"));
  for (Submission& each : group) {
    each.request.group = name;
    each.request.group_size = 2;
  }
  for (const Handle& handle : gpu.engine.submit(0, std::move(group))) gpu.finish(handle);
  expect(gpu.read<float>(first.data(), count) == std::vector<float>(count, 2), name);
  expect(gpu.read<float>(second.data(), count) == std::vector<float>(count, 4), name);
}

}  // namespace

// The functions NCCL uses for these GPUs: windows if the GPUs support them.
std::pair<std::string, std::string> ways_of(bool symmetric) {
  return symmetric ? std::pair("ncclCommWindowRegister", "ncclCommWindowDeregister")
                   : std::pair("ncclCommRegister", "ncclCommDeregister");
}

TEST_CASE("a fusion buffer is registered once for each size, and until its end") {
  const bool symmetric = GENERATE(true, false);
  const NcclFixture fixture({.symmetric = symmetric});
  const auto [registers, deregisters] = ways_of(symmetric);
  const auto count = [&](const std::string& function, int rank) {
    return calls_of(function, rank);
  };
  run_gpu_ranks(2, [&, registers = registers, deregisters = deregisters](GpuRank& mine) {
    FusionBuffer buffer;
    expect(buffer.data() == nullptr, "nothing was asked for");
    std::byte* const small = room(buffer, mine, 10);
    expect(small != nullptr, "memory");
    expect(room(buffer, mine, mebibyte) == small, "it is enough");
    expect(count(registers, mine.rank) == 1, "registered");
    expect(room(buffer, mine, mebibyte + 1) != small, "it has grown");
    expect(count(registers, mine.rank) == 2, "registered again");
    expect(calls_of("ncclCommRegister", mine.rank) == (symmetric ? 0 : 2), "in one way only");
    expect(count(deregisters, mine.rank) == 0, "streams may use the old one");
    mine.close();
    expect(count(deregisters, mine.rank) == 2, "deregistered");
  });
}

TEST_CASE("a communicator that is aborted forgets its buffers") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [&](GpuRank& mine) {
    FusionBuffer buffer;
    static_cast<void>(room(buffer, mine, 10));
    mine.communicator->abort();
  });
}

TEST_CASE("the engine packs into registered memory, which grows") {
  const bool symmetric = GENERATE(true, false);
  const NcclFixture fixture({.symmetric = symmetric}, 13);
  const std::string registers = ways_of(symmetric).first;
  const std::string deregisters = ways_of(symmetric).second;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    for (const char* name : {"a", "b", "c"}) reduce_packed(gpu, 1000, name);
    expect(calls_of(registers, gpu.rank()) == 1, "registered once");
    reduce_packed(gpu, 3 * mebibyte, "large");
    expect(calls_of(registers, gpu.rank()) == 2, "and when it has grown");
    reduce_packed(gpu, 1000, "a");
    expect(calls_of(registers, gpu.rank()) == 2, "not again");
    gpu.drain();
  });
  CHECK(calls_of(deregisters, 0) == 2);
  CHECK(calls_of(deregisters, 1) == 2);
}

// All ranks make a window together, of the same size.
TEST_CASE("all ranks make their windows in one order, with other calls and of one size") {
  const NcclFixture fixture;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    for (const std::size_t bytes : {1000U, 3U << 20, 20U << 20}) {
      reduce_packed(gpu, bytes, str("of ", bytes));
    }
    gpu.drain();
  });
  const auto alike = [](int rank) {
    std::vector<std::pair<std::string, std::uint64_t>> result;
    for (const NcclCall& call : nccl_double().calls(rank)) {
      result.emplace_back(call.function, call.count);
    }
    return result;
  };
  CHECK(calls_of("ncclCommWindowRegister", 0) == 3);
  CHECK(alike(1) == alike(0));
}

// NCCL requires that all ranks register what they reduce, or none.
TEST_CASE("where NCCL refuses one rank to register, all ranks are told") {
  const std::string function = GENERATE("ncclCommWindowRegister", "ncclCommRegister");
  const NcclFixture fixture({.symmetric = function != "ncclCommRegister"});
  nccl_double().fail(function, 0, 1, nccl::invalid_usage, "not here");
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    const DeviceMemory first = gpu.tensor(std::vector<float>(8, 1));
    const DeviceMemory second = gpu.tensor(std::vector<float>(8, 1));
    gpu.drain();
    std::vector<Submission> group;
    group.push_back(gpu.allreduce(first, 8, DataType::float32, "a"));
    group.push_back(gpu.allreduce(second, 8, DataType::float32, "b"));
    for (Submission& each : group) {
      each.request.group = "g";
      each.request.group_size = 2;
    }
    const auto handles = gpu.engine.submit(0, std::move(group));
    // A rank that has already enqueued its part learns of it when the world ends.
    const Time end = soon();
    while (gpu.engine.refusal().ok() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::string why = gpu.engine.refusal().to_string();
    expect(why.find("not here") != std::string::npos, why);
    for (const Handle& handle : handles) {
      while (gpu.error_of(handle) == "none" && Clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      expect(gpu.error_of(handle) != "none", "what was given up is no result");
      outlast(handle);
    }
    gpu.drain();
  });
}

TEST_CASE(
    "a rank without memory for the buffer fails the operation on all, and the world goes on") {
  const NcclFixture fixture;
  nccl_double().fail("ncclMemAlloc", 0, 1, nccl::unhandled_cuda_error, "out of memory");
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    const DeviceMemory first = gpu.tensor(std::vector<float>(8, 1));
    const DeviceMemory second = gpu.tensor(std::vector<float>(8, 1));
    gpu.drain();
    const auto reduce = [&] {
      std::vector<Submission> group;
      group.push_back(gpu.allreduce(first, 8, DataType::float32, "a"));
      group.push_back(gpu.allreduce(second, 8, DataType::float32, "b"));
      for (Submission& each : group) {
        each.request.group = "g";
        each.request.group_size = 2;
      }
      return gpu.engine.submit(0, std::move(group));
    };
    for (const Handle& handle : reduce()) {
      const std::string error = gpu.error_of(handle);
      expect(error.find("has no memory left for it") != std::string::npos &&
                 error.find("out of memory") != std::string::npos,
             error);
    }
    expect(gpu.read<float>(first.data(), 8) == std::vector<float>(8, 1), "as it was");
    for (const Handle& handle : reduce()) gpu.finish(handle);
    expect(gpu.read<float>(second.data(), 8) == std::vector<float>(8, 2), "the next one");
    gpu.drain();
  });
}

TEST_CASE("where memory runs out, who keeps some is asked to release it, and it is tried again") {
  const NcclFixture fixture;
  int asked_of = -1;
  set_memory_release([&](int device) { asked_of = device; });
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  SECTION("NCCL's memory") {
    nccl_double().fail("ncclMemAlloc", 0, 1, nccl::unhandled_cuda_error, "out of memory");
    CHECK(take(NcclMemory::allocate({*library, CudaFixture::device(1)}, 64), "memory").size() ==
          64);
  }
  SECTION("memory") {
    cuda_double().fail("cuMemAlloc_v2", 1, 2);
    CHECK(take(DeviceMemory::allocate(CudaFixture::device(1), 64), "memory").size() == 64);
  }
  CHECK(asked_of == 1);
  set_memory_release(nullptr);
  cuda_double().fail("cuMemAlloc_v2", 1, 2);
  CHECK_FALSE(DeviceMemory::allocate(CudaFixture::device(1), 64).ok());
}

TEST_CASE("with one rank nothing is registered") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    FusionBuffer buffer;
    expect(room(buffer, mine, 10) != nullptr, "memory");
    mine.close();
  });
  CHECK(calls_of("ncclCommWindowRegister", 0) + calls_of("ncclCommRegister", 0) == 0);
}

// An odd number of small elements, followed by 16-byte vectors.
TEST_CASE("a tensor of odd size leaves those behind it aligned in the buffer") {
  const NcclFixture fixture;
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    const DeviceMemory odd = gpu.tensor(std::vector<std::uint8_t>(3, 1));
    const DeviceMemory next = gpu.tensor(std::vector<std::uint8_t>(64, 2));
    std::vector<Submission> group;
    group.push_back(gpu.allreduce(odd, 3, DataType::uint8, "odd"));
    group.push_back(gpu.allreduce(next, 64, DataType::uint8, "next"));
    for (Submission& each : group) {
      each.request.group = "g";
      each.request.group_size = 2;
    }
    for (const Handle& handle : gpu.engine.submit(0, std::move(group))) gpu.finish(handle);
    expect(gpu.read<std::uint8_t>(odd.data(), 3) == std::vector<std::uint8_t>(3, 2), "odd");
    expect(gpu.read<std::uint8_t>(next.data(), 64) == std::vector<std::uint8_t>(64, 4), "next");
    gpu.drain();
  });
  const auto calls = nccl_double().calls(0);
  const auto reduced = std::find_if(calls.begin(), calls.end(), [](const NcclCall& call) {
    return call.function == "ncclAllReduce";
  });
  REQUIRE(reduced != calls.end());
  CHECK(reduced->count == 16 + 64);
}

TEST_CASE("a world that breaks leaves no registration behind") {
  const NcclFixture fixture;
  nccl_double().fail("ncclAllReduce", 1, 2, nccl::system_error, "the link has gone");
  std::vector<DeviceMemory> tensors(2);  // the GPU may be at work until the engines have ended
  run_gpu_engines({}, [&](GpuEngine& gpu) {
    reduce_packed(gpu, 1000, "a");
    DeviceMemory& memory = tensors[static_cast<std::size_t>(gpu.rank())];
    memory = gpu.tensor(std::vector<float>(8, 1));
    std::string error = "none";
    for (int step = 0; step < 50 && error == "none"; ++step) {
      error = gpu.error_of(gpu.submit(gpu.allreduce(memory, 8, DataType::float32, "x")));
    }
    expect(error.find("the link has gone") != std::string::npos, error);
    gpu.drain();
  });
}

// The double must detect what these tests rely on.
TEST_CASE("memory that is freed while it is registered is found") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const NcclMemory memory = take(NcclMemory::allocate({mine.library, mine.device}, 64), "memory");
    expect_ok(mine.communicator->register_memory(memory.data(), memory.size()), "register");
    expect_ok(mine.communicator->wait_until_ready(soon()), "registered");
    // The memory itself stays allocated, because the double refuses to free it.
    NcclHeap(mine.library, mine.device).free(memory.data());
    mine.close();
  });
  CHECK(nccl_double().take_misuse().size() == 2);
}

}  // namespace rueda::test::gpu_fusion_buffer_test
