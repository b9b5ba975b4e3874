// The kernels as compiled by nvcc, on a GPU of this machine; skipped without one. The doubles,
// which run the same sources as plain C++, are not involved.
#include <algorithm>
#include <iostream>
#include <optional>

#include "cuda/batch_kernels.h"
#include "cuda/kernel_image.h"
#include "unit/cuda/cuda_arrays.h"

namespace rueda::test::cuda_hardware_test {
namespace {

struct RealGpu {
  DeviceReference device;
  CudaStream stream;
  BatchKernels kernels;
};

// Without a GPU, returns nothing and prints the reason. Errors on a GPU are failures.
std::optional<RealGpu> real_gpu() {
  const Options options;
  const auto driver = load_cuda(options);
  const auto count = driver ? (*driver)->device_count() : Expected<int>(driver.status());
  if (!count || *count == 0) {
    std::cout << "skipped: no GPU can be used: "
              << (count ? "the driver has none" : count.status().to_string()) << '\n';
    return std::nullopt;
  }
  const DeviceReference device = take(CudaDevice::open(**driver, 0), "CudaDevice::open");
  return RealGpu{device, take(CudaStream::create(device), "stream"),
                 take(BatchKernels::load(device), "BatchKernels::load")};
}

TEST_CASE("a GPU packs and unpacks bytes whatever their addresses and lengths") {
  const auto gpu = real_gpu();
  if (!gpu) return;
  constexpr std::size_t room = 40000;
  const auto content = random_bytes(room, 1);
  const DeviceMemory source = on_device(gpu->stream, content);
  for (const std::size_t bytes : {0, 1, 15, 16, 17, 4097, 16384, 16385, 33333}) {
    for (const std::size_t from : {0, 1, 4, 7, 8}) {
      for (const std::size_t to : {0, 1, 3, 8, 12}) {
        CAPTURE(bytes, from, to);
        const DeviceMemory target = on_device(gpu->stream, std::vector<std::byte>(room));
        const TensorCopy copy{source.data() + from, target.data() + to, bytes, DataType::uint8,
                              DataType::uint8};
        REQUIRE(gpu->kernels.copy(gpu->stream, std::span(&copy, 1)).ok());
        std::vector<std::byte> expected(room);
        std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        REQUIRE(on_host<std::byte>(gpu->stream, target.data(), room) == expected);
      }
    }
  }
}

TEST_CASE("a GPU converts and scales floating-point types to the last bit") {
  const auto gpu = real_gpu();
  if (!gpu) return;
  for (const DataType from : float_types) {
    for (const DataType to : float_types) {
      for (const double scale : {1.0, 0.25, 1.0 / 3}) {
        for (const std::size_t count : {1, 7, 1000, 4099, 100003}) {
          CAPTURE(name_of(from), name_of(to), scale, count);
          const auto content = random_floats(from, count, 5);
          const DeviceMemory source = on_device(gpu->stream, content);
          const auto target =
              take(DeviceMemory::allocate(gpu->device, count * size_of(to)), "allocate");
          const TensorCopy copy{source.data(), target.data(), count, from, to};
          REQUIRE(gpu->kernels.copy(gpu->stream, std::span(&copy, 1), scale).ok());
          REQUIRE(on_host<std::byte>(gpu->stream, target.data(), count * size_of(to)) ==
                  converted(content, from, to, scale));
        }
      }
    }
  }
}

TEST_CASE("a GPU packs a batch of 161 tensors of mixed sizes and unpacks it") {
  const auto gpu = real_gpu();
  if (!gpu) return;
  std::vector<TensorCopy> pack;
  std::vector<TensorCopy> unpack;
  std::size_t total = 0;
  for (std::size_t i = 0; i < 161; ++i) total += i % 20 == 3 ? 300007 : i * 37 % 1500;
  const auto content = random_floats(DataType::float32, total, 3);
  const DeviceMemory tensors = on_device(gpu->stream, content);
  const auto buffer = take(DeviceMemory::allocate(gpu->device, 2 * total), "allocate");
  const auto restored = take(DeviceMemory::allocate(gpu->device, 4 * total), "allocate");
  std::size_t offset = 0;
  for (std::size_t i = 0; i < 161; ++i) {
    const std::size_t elements = i % 20 == 3 ? 300007 : i * 37 % 1500;
    std::byte* packed = buffer.data() + 2 * offset;
    pack.push_back(
        {tensors.data() + 4 * offset, packed, elements, DataType::float32, DataType::bfloat16});
    unpack.push_back(
        {packed, restored.data() + 4 * offset, elements, DataType::bfloat16, DataType::float32});
    offset += elements;
  }
  REQUIRE(gpu->kernels.copy(gpu->stream, pack, 0.5).ok());
  REQUIRE(gpu->kernels.copy(gpu->stream, unpack, 4.0).ok());
  const auto packed = converted(content, DataType::float32, DataType::bfloat16, 0.5);
  CHECK(on_host<std::byte>(gpu->stream, buffer.data(), 2 * total) == packed);
  CHECK(on_host<std::byte>(gpu->stream, restored.data(), 4 * total) ==
        converted(packed, DataType::bfloat16, DataType::float32, 4.0));
}

}  // namespace
}  // namespace rueda::test::cuda_hardware_test
