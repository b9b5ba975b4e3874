// A GPU for a test: the double of the CUDA driver, loaded as Rueda loads the real one.
#pragma once

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "core/options.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda_driver/cuda_double.h"
#include "ranks/rank_threads.h"

namespace rueda::test {

inline Options double_options() {
  Options options;
  options.cuda_library = RUEDA_CUDA_DOUBLE;
  options.nccl_library = RUEDA_NCCL_DOUBLE;
  return options;
}

inline CudaDouble& cuda_double() {
  static CudaDouble* found = [] {
    void* library = dlopen(RUEDA_CUDA_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<decltype(&rueda_cuda_double)>(dlsym(library, "rueda_cuda_double"))();
  }();
  return *found;
}

// The value; on an error, ends the test or rank with the reason.
template <class T>
T take(Expected<T> expected, const std::string& what) {
  expect_ok(expected.status(), what);
  return std::move(expected).value();
}

// A fresh driver for each test. When the test ends, nothing may have been misused and no memory may
// be left.
class CudaFixture {
 public:
  explicit CudaFixture(const CudaSettings& settings = {}) { cuda_double().reset(settings); }
  ~CudaFixture() {
    CHECK(cuda_double().allocations() == 0);
    CHECK(cuda_double().pools() == 0);
    for (const std::string& misuse : cuda_double().take_misuse()) FAIL_CHECK(misuse);
    cuda_double().reset();
  }
  CudaFixture(const CudaFixture&) = delete;
  CudaFixture& operator=(const CudaFixture&) = delete;

  // A device of this fixture.
  [[nodiscard]] static DeviceReference device(int ordinal = 0) {
    const CudaDriver* driver = take(load_cuda(double_options()), "load_cuda");
    return take(CudaDevice::open(*driver, ordinal), "CudaDevice::open");
  }
};

// Device memory that holds `content`.
template <class T>
DeviceMemory on_device(const CudaStream& stream, const std::vector<T>& content) {
  auto memory =
      take(DeviceMemory::allocate(stream.device(), content.size() * sizeof(T)), "allocate");
  expect_ok(copy_to_device(stream, memory.data(),
                           reinterpret_cast<const std::byte*>(content.data()), memory.size()),
            "copy to the device");
  return memory;
}

// What the host reads after all work enqueued on `stream`.
template <class T>
std::vector<T> on_host(const CudaStream& stream, const std::byte* memory, std::size_t count) {
  std::vector<T> content(count);
  expect_ok(
      copy_to_host(stream, reinterpret_cast<std::byte*>(content.data()), memory, count * sizeof(T)),
      "copy to the host");
  expect_ok(stream.wait_until_idle(soon()), "wait for the copy");
  return content;
}

}  // namespace rueda::test
