// Memory of results that the engine allocates on a GPU: reused without a wait, and never too early.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <optional>

#include "backend/device_result.h"
#include "backend/gpu/result_pool.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_result_memory_test {
namespace {

// A pool on a device with streams of its own.
class PoolUser {
 public:
  PoolUser()
      : device(CudaFixture::device()),
        writer(std::make_shared<const CudaStream>(take(CudaStream::create(device), "stream"))),
        reader(take(CudaStream::create(device), "stream")),
        pool(take(ResultPool::open(device), "pool")) {}

  // Memory filled with ones, and `reader` ordered after that.
  [[nodiscard]] std::shared_ptr<std::byte[]> ones(std::size_t bytes) const {
    auto memory = take(pool->allocate(writer, bytes), "memory");
    expect_ok(fill_bytes(*writer, memory.get(), std::byte{1}, bytes), "ones");
    const CudaEvent written = take(CudaEvent::create(device), "event");
    expect_ok(written.record(*writer), "record");
    expect_ok(reader.wait_for(written), "wait");
    return memory;
  }
  void drain() const {
    expect_ok(writer->wait_until_idle(soon()), "the writer");
    expect_ok(reader.wait_until_idle(soon()), "the reader");
  }

  DeviceReference device;
  std::shared_ptr<const CudaStream> writer;
  CudaStream reader;
  std::shared_ptr<ResultPool> pool;
};

// Blocks what is enqueued on `stream` from now on until it is opened.
class Gate {
 public:
  explicit Gate(const CudaStream& stream) {
    cuda_double().enqueue(stream.handle(), [opened = opened_.get_future().share()] {
      opened.wait_for(std::chrono::seconds(20));
    });
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

std::vector<std::string> misuse_of(const std::function<void()>& body) {
  cuda_double().reset({.delay_seed = 5});
  body();
  auto found = cuda_double().take_misuse();
  cuda_double().reset();  // clears sticky errors
  return found;
}

}  // namespace

TEST_CASE("a released result may be dropped while a stream still reads it") {
  const bool memory_pools = GENERATE(true, false);
  const CudaFixture fixture({.memory_pools = memory_pools, .delay_seed = 3});
  const PoolUser user;
  constexpr std::size_t bytes = 100000;
  const auto copy = take(DeviceMemory::allocate(user.device, bytes), "copy");
  for (int round = 0; round < 20; ++round) {
    expect_ok(fill_bytes(user.reader, copy.data(), std::byte{}, bytes), "clear");
    auto memory = user.ones(bytes);
    expect_ok(copy_on_device(user.reader, copy.data(), memory.get(), bytes), "read");
    DeviceResult* const result = device_result_of(memory);
    REQUIRE(result != nullptr);
    expect_ok(result->release(user.reader.handle()), "release");
    memory.reset();
    CHECK(on_host<std::byte>(user.reader, copy.data(), bytes) ==
          std::vector<std::byte>(bytes, std::byte{1}));
  }
  CHECK((cuda_double().calls_of("cuMemAlloc_v2") == 1) == memory_pools);
  user.drain();
}

TEST_CASE("a result that nobody looked at ends after it has been written") {
  const CudaFixture fixture({.delay_seed = 4});
  const PoolUser user;
  for (int round = 0; round < 20; ++round) {
    const auto memory = take(user.pool->allocate(user.writer, 5000), "memory");
    expect_ok(fill_bytes(*user.writer, memory.get(), std::byte{1}, 5000), "write");
  }
  CHECK(take(user.pool->allocate(user.writer, 0), "nothing") == nullptr);
  user.drain();
}

TEST_CASE("a result outlives whoever allocated it") {
  const CudaFixture fixture;
  std::shared_ptr<std::byte[]> memory;
  {
    const PoolUser user;
    memory = user.ones(64);
    user.drain();
  }
  CHECK(cuda_double().pools() == 1);
  memory.reset();
  CHECK(cuda_double().pools() == 0);
}

TEST_CASE("other memory is no result") {
  CHECK(device_result_of(std::shared_ptr<std::byte[]>()) == nullptr);
  CHECK(device_result_of(std::make_shared<std::byte[]>(8)) == nullptr);
}

TEST_CASE("a result is not released into a graph that is being captured") {
  const CudaFixture fixture;
  const PoolUser user;
  const auto memory = user.ones(64);
  cuda_double().begin_capture(user.reader.handle());
  const Status status = device_result_of(memory)->release(user.reader.handle());
  static_cast<void>(cuda_double().end_capture(user.reader.handle()));
  CHECK(status.code() == ErrorCode::unsupported);
  user.drain();
}

// The double must detect what these tests rely on.
TEST_CASE("what is used after its end, or before its beginning, is found") {
  const CudaFixture fixture;
  SECTION("dropped, and only then used") {
    CHECK_FALSE(misuse_of([] {
                  const PoolUser user;
                  auto memory = user.ones(64);
                  std::byte* const gone = memory.get();
                  memory.reset();
                  CHECK_FALSE(fill_bytes(user.reader, gone, std::byte{2}, 64).ok());
                  user.drain();
                }).empty());
  }
  SECTION("dropped without a word while a stream uses it") {
    static_cast<void>(misuse_of([] {
      const PoolUser user;
      auto memory = user.ones(64);
      Gate gate(user.reader);
      expect_ok(fill_bytes(user.reader, memory.get(), std::byte{2}, 64), "use");
      memory.reset();
      await([] { return !cuda_double().take_misuse().empty(); }, "it is found");
      gate.open();
      static_cast<void>(user.reader.wait_until_idle(soon()));
    }));
  }
  SECTION("used by a stream that does not wait for the writer's") {
    CHECK_FALSE(misuse_of([] {
                  const PoolUser user;
                  const CudaStream other = take(CudaStream::create(user.device), "stream");
                  Gate gate(*user.writer);
                  const auto memory = take(user.pool->allocate(user.writer, 64), "memory");
                  expect_ok(fill_bytes(other, memory.get(), std::byte{2}, 64), "use");
                  static_cast<void>(other.wait_until_idle(soon()));
                  gate.open();
                  static_cast<void>(user.writer->wait_until_idle(soon()));  // all have failed
                }).empty());
  }
}

TEST_CASE("a device whose pools fail gives memory in the old way") {
  const CudaFixture fixture;
  cuda_double().fail("cuMemPoolSetAttribute", 1, 1);
  const PoolUser user;
  const auto memory = user.ones(64);
  CHECK(cuda_double().calls_of("cuMemAlloc_v2") == 1);
  CHECK(cuda_double().pools() == 0);
  user.drain();
}

TEST_CASE("gathering again allocates nothing that the GPU stands still for") {
  const NcclFixture fixture({}, 9);
  const std::string backend = GENERATE("nccl", "staged");
  GpuWorld world{2};
  world.options.gpu_backend = backend;
  constexpr std::size_t count = 5000;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory own =
        gpu.tensor(std::vector<float>(count, 1.0F + static_cast<float>(gpu.rank())));
    const DeviceMemory copy = gpu.tensor(std::vector<float>(2 * count, 0));
    const auto meet = [&] {
      std::vector<float> host(1);
      test::finish(test::submit(gpu.engine, allreduce_of(host, DataType::float32, "meet")));
    };
    int before = 0;
    for (int round = 0; round < 12; ++round) {
      const std::string name = "g" + std::to_string(round % 3);
      Handle gathered =
          gpu.submit(gpu.submission(Collective::allgather, own, {count}, DataType::float32, name));
      gpu.finish(gathered);
      expect_ok(
          copy_on_device(gpu.stream(), copy.data(), gathered.output().data.get(), copy.size()),
          "use");
      gathered.release_output(gpu.stream().handle());
      gathered = Handle();  // the GPU is still reading
      if (round == 2) {
        meet();
        before = cuda_double().calls_of("cuMemAlloc_v2");
        meet();
      }
      std::vector<float> expected(count, 1);
      expected.resize(2 * count, 2);
      expect(gpu.read<float>(copy.data(), 2 * count) == expected, "gathered");
    }
    expect(cuda_double().calls_of("cuMemAlloc_v2") == before, "no allocation");
    expect(cuda_double().calls_of("cuMemFree_v2") == 0, "nothing was freed");
    meet();
    gpu.drain();
  });
}

}  // namespace rueda::test::gpu_result_memory_test
