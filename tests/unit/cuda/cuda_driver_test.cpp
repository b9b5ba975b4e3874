// The driver and its devices, over the double.
#include "cuda/driver.h"
#include "unit/cuda/cuda_fixture.h"

namespace rueda::test::cuda_driver_test {
namespace {

std::string refusal(const Options& options) {
  const auto driver = load_cuda(options);
  if (driver.ok()) return "loaded";
  CHECK(driver.status().code() == ErrorCode::initialization);
  return driver.status().to_string();
}

// A path from which the double has not been loaded yet: success is cached by path.
Options fresh_options() {
  static int number = 0;
  Options options = double_options();
  std::string prefix;
  for (int i = ++number; i > 0; --i) prefix += "/.";
  options.cuda_library.insert(options.cuda_library.rfind('/'), prefix);
  return options;
}

TEST_CASE("what cannot be loaded says what was tried and what to do") {
  Options options;
  options.cuda_library = "/nowhere/libcuda.so.1";
  const std::string text = refusal(options);
  CHECK_THAT(text, Catch::Contains("RUEDA_CUDA_LIBRARY: /nowhere/libcuda.so.1"));
  CHECK_THAT(text, Catch::Contains("Install NVIDIA's driver"));
}

TEST_CASE("a library that is no driver is refused with what it lacks") {
  Options options;
  options.cuda_library = "libm.so.6";
  CHECK_THAT(refusal(options), Catch::Contains("lacks cuGetErrorName") &&
                                   Catch::Contains("cuMemAlloc_v2") &&
                                   Catch::Contains("older than CUDA 12.2"));
}

TEST_CASE("a driver that is too old is refused with both versions") {
  const CudaFixture fixture({.version = 11080});
  CHECK_THAT(refusal(fresh_options()),
             Catch::Contains("is for CUDA 11.8; Rueda needs 12.2 or newer"));
}

TEST_CASE("a driver that does not start says why") {
  const CudaFixture fixture({.devices = 0});
  CHECK_THAT(refusal(fresh_options()),
             Catch::Contains("does not start") && Catch::Contains("CUDA_ERROR_NO_DEVICE"));
}

TEST_CASE("a driver is loaded once, and a failure is not remembered") {
  const CudaFixture fixture({.version = 12000});
  const Options options = fresh_options();
  CHECK_FALSE(load_cuda(options).ok());
  cuda_double().reset({.version = 12020});
  const auto first = load_cuda(options);
  REQUIRE(first.ok());
  CHECK(first.value()->version() == 12020);
  CHECK_THAT(first.value()->library(), Catch::Contains("libcuda.so.1"));
  CHECK(load_cuda(options).value() == first.value());
}

TEST_CASE("a device tells what it is, and shares the primary context") {
  const CudaFixture fixture({.devices = 2, .compute_capability = 100});
  {
    const DeviceReference device = CudaFixture::device(1);
    CHECK(device->facts().ordinal == 1);
    CHECK(device->facts().name == "Test Double");
    CHECK(device->facts().pci_bus_id == "0000:01:00.0");
    CHECK(device->facts().compute_capability == 100);
    CHECK(device->facts().memory_bytes == std::size_t{1} << 30);
    CHECK(cuda_double().retained(1) == 1);
    CHECK(cuda_double().retained(0) == 0);
    CHECK(CudaFixture::device(1)->context() == device->context());
  }
  CHECK(cuda_double().retained(1) == 0);
}

TEST_CASE("a device that does not exist is refused with how many there are") {
  const CudaFixture fixture({.devices = 2});
  const CudaDriver* driver = take(load_cuda(double_options()), "load_cuda");
  for (const int ordinal : {-1, 2, 99}) {
    const auto device = CudaDevice::open(*driver, ordinal);
    REQUIRE_FALSE(device.ok());
    CHECK(device.status().code() == ErrorCode::invalid_argument);
    CHECK_THAT(device.status().message(),
               Catch::Contains(str("there is no GPU ", ordinal, ": this process has 2")));
  }
}

TEST_CASE("a current device is left as it was found") {
  const CudaFixture fixture;
  const DeviceReference zero = CudaFixture::device(0);
  const DeviceReference one = CudaFixture::device(1);
  const int before = cuda_double().calls_of("cuCtxPushCurrent_v2");
  {
    const CurrentDevice outer(*zero);
    REQUIRE(outer.status().ok());
    const int looks = cuda_double().calls();
    const CurrentDevice same(*zero);
    CHECK(cuda_double().calls_of("cuCtxPushCurrent_v2") == before + 1);
    CHECK(cuda_double().calls() == looks);
    const CurrentDevice other(*one);
    CHECK(cuda_double().calls_of("cuCtxPushCurrent_v2") == before + 2);
    const CurrentDevice again(*zero);
    CHECK(cuda_double().calls_of("cuCtxPushCurrent_v2") == before + 3);
  }
  CHECK(cuda_double().calls_of("cuCtxPopCurrent_v2") ==
        cuda_double().calls_of("cuCtxPushCurrent_v2"));
}

TEST_CASE("within a device that could not be made current nothing is") {
  const CudaFixture fixture;
  const DeviceReference device = CudaFixture::device(0);
  constexpr int out_of_memory = 2;
  cuda_double().fail("cuCtxPushCurrent_v2", 1, out_of_memory);
  const CurrentDevice outer(*device);
  REQUIRE_FALSE(outer.status().ok());
  CHECK(CurrentDevice(*device).status().code() == outer.status().code());
  CHECK_FALSE(CudaStream::create(device).ok());
}

TEST_CASE("errors carry the driver's name and words, and the device") {
  const CudaFixture fixture;
  const DeviceReference device = CudaFixture::device(1);
  cuda_double().fail("cuMemAlloc_v2", 1, 2);
  const auto memory = DeviceMemory::allocate(device, 4096);
  REQUIRE_FALSE(memory.ok());
  CHECK(memory.status().code() == ErrorCode::transport);
  CHECK(
      memory.status().message() ==
      "GPU 1: allocating 4096 bytes (cuMemAlloc) failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  // An error code that the driver has no name for.
  CHECK(device->check(12345, "it").message() == "GPU 1: it failed: CUDA error 12345");
}

}  // namespace
}  // namespace rueda::test::cuda_driver_test
