// The kernels that copy and convert, run as plain C++ by the double, against element-by-element
// references.
#include <algorithm>
#include <set>

#include "cuda/batch_kernels.h"
#include "unit/cuda/cuda_arrays.h"

namespace rueda::test::cuda_kernels_test {
namespace {

TEST_CASE("bytes are copied whatever the addresses and lengths") {
  Gpu gpu;
  constexpr std::size_t room = 40000;
  const auto content = random_bytes(room, 1);
  const DeviceMemory source = on_device(gpu.stream, content);
  for (const std::size_t bytes : {0, 1, 2, 15, 16, 17, 255, 4097, 16384, 16385, 33333}) {
    for (const std::size_t from : {0, 1, 2, 4, 7, 8, 16}) {
      for (const std::size_t to : {0, 1, 3, 4, 8, 12}) {
        CAPTURE(bytes, from, to);
        const DeviceMemory target = on_device(gpu.stream, std::vector<std::byte>(room));
        REQUIRE(gpu.kernels
                    .copy(gpu.stream,
                          std::vector<TensorCopy>{{source.data() + from, target.data() + to, bytes,
                                                   DataType::uint8, DataType::uint8}})
                    .ok());
        std::vector<std::byte> expected(room);
        std::copy_n(content.begin() + from, bytes, expected.begin() + to);
        REQUIRE(on_host<std::byte>(gpu.stream, target.data(), room) == expected);
      }
    }
  }
}

TEST_CASE("every element type is packed and unpacked without a change") {
  Gpu gpu;
  std::vector<TensorCopy> pack;
  std::vector<TensorCopy> unpack;
  std::vector<DeviceMemory> tensors;
  std::vector<std::vector<std::byte>> contents;
  std::size_t total = 0;
  for (const DataTypeInfo& type : data_types) total += 333 * type.size;
  const auto buffer = take(DeviceMemory::allocate(gpu.device, total), "allocate");
  const auto returned = take(DeviceMemory::allocate(gpu.device, total), "allocate");
  std::size_t offset = 0;
  for (const DataTypeInfo& type : data_types) {
    contents.push_back(random_bytes(333 * type.size, static_cast<unsigned>(offset)));
    tensors.push_back(on_device(gpu.stream, contents.back()));
    pack.push_back({tensors.back().data(), buffer.data() + offset, 333, type.id, type.id});
    unpack.push_back({buffer.data() + offset, returned.data() + offset, 333, type.id, type.id});
    offset += 333 * type.size;
  }
  const int before = cuda_double().calls_of("cuLaunchKernel");
  REQUIRE(gpu.kernels.copy(gpu.stream, pack).ok());
  REQUIRE(gpu.kernels.copy(gpu.stream, unpack).ok());
  CHECK(cuda_double().calls_of("cuLaunchKernel") == before + 2);
  std::vector<std::byte> expected;
  for (const auto& content : contents)
    expected.insert(expected.end(), content.begin(), content.end());
  CHECK(on_host<std::byte>(gpu.stream, returned.data(), total) == expected);
}

TEST_CASE("floating-point types are converted and scaled, each rounded once") {
  Gpu gpu;
  for (const DataType from : float_types) {
    for (const DataType to : float_types) {
      for (const double scale : {1.0, 0.25, 1.0 / 3}) {
        for (const std::size_t count : {1, 7, 8, 1000, 4099}) {
          for (const std::size_t skipped : {0, 1, 2}) {
            CAPTURE(name_of(from), name_of(to), scale, count, skipped);
            const auto content = random_floats(from, count, 5);
            auto shifted = std::vector<std::byte>(skipped * size_of(from));
            shifted.insert(shifted.end(), content.begin(), content.end());
            const DeviceMemory source = on_device(gpu.stream, shifted);
            const auto target =
                take(DeviceMemory::allocate(gpu.device, (count + 1) * size_of(to)), "allocate");
            std::byte* destination = target.data() + (skipped == 2 ? size_of(to) : 0);
            REQUIRE(gpu.kernels
                        .copy(gpu.stream,
                              std::vector<TensorCopy>{{source.data() + skipped * size_of(from),
                                                       destination, count, from, to}},
                              scale)
                        .ok());
            REQUIRE(on_host<std::byte>(gpu.stream, destination, count * size_of(to)) ==
                    converted(content, from, to, scale));
          }
        }
      }
    }
  }
}

TEST_CASE("a large batch of mixed sizes is one launch, and a larger one as few as it takes") {
  Gpu gpu;
  const int count = GENERATE(161, 1000, 1001);
  std::vector<TensorCopy> tensors;
  std::size_t total = 0;
  std::vector<std::size_t> sizes;
  for (int i = 0; i < count; ++i) {
    // From empty to several tiles.
    const std::size_t elements = i % 50 == 7 ? 9001 : static_cast<std::size_t>(i * 7 % 23);
    sizes.push_back(elements);
    total += elements;
  }
  const auto content = random_floats(DataType::float32, total, 3);
  const DeviceMemory source = on_device(gpu.stream, content);
  const auto target = take(DeviceMemory::allocate(gpu.device, 2 * total), "allocate");
  std::size_t offset = 0;
  for (const std::size_t elements : sizes) {
    tensors.push_back({source.data() + 4 * offset, target.data() + 2 * offset, elements,
                       DataType::float32, DataType::bfloat16});
    offset += elements;
  }
  // Empty tensors are not counted.
  const auto filled = std::count_if(sizes.begin(), sizes.end(), [](auto size) { return size > 0; });
  const int launches = filled > 1000 ? 2 : 1;
  const int before = cuda_double().calls_of("cuLaunchKernel");
  REQUIRE(gpu.kernels.copy(gpu.stream, tensors, 0.5).ok());
  CHECK(cuda_double().calls_of("cuLaunchKernel") == before + launches);
  CHECK(on_host<std::byte>(gpu.stream, target.data(), 2 * total) ==
        converted(content, DataType::float32, DataType::bfloat16, 0.5));
}

TEST_CASE("more tensors than one launch takes are several launches") {
  Gpu gpu;
  const auto content = random_bytes(4 * 1500, 9);
  const DeviceMemory source = on_device(gpu.stream, content);
  const auto target = take(DeviceMemory::allocate(gpu.device, content.size()), "allocate");
  std::vector<TensorCopy> tensors;
  for (std::size_t i = 0; i < 1500; ++i)
    tensors.push_back(
        {source.data() + 4 * i, target.data() + 4 * i, 1, DataType::int32, DataType::int32});
  const int before = cuda_double().calls_of("cuLaunchKernel");
  REQUIRE(gpu.kernels.copy(gpu.stream, tensors).ok());
  CHECK(cuda_double().calls_of("cuLaunchKernel") == before + 2);
  CHECK(on_host<std::byte>(gpu.stream, target.data(), content.size()) == content);
}

TEST_CASE("no tensors, and tensors without elements, launch nothing") {
  Gpu gpu;
  CHECK(gpu.kernels.copy(gpu.stream, {}).ok());
  CHECK(gpu.kernels.copy(gpu.stream, std::vector<TensorCopy>(3)).ok());
  CHECK(cuda_double().calls_of("cuLaunchKernel") == 0);
}

TEST_CASE("no source stands for zeros") {
  Gpu gpu;
  const DeviceMemory target = on_device(gpu.stream, random_bytes(100, 2));
  REQUIRE(gpu.kernels
              .copy(gpu.stream,
                    std::vector<TensorCopy>{
                        {nullptr, target.data(), 10, DataType::float32, DataType::bfloat16},
                        {nullptr, target.data() + 20, 80, DataType::int8, DataType::int8}})
              .ok());
  CHECK(on_host<std::byte>(gpu.stream, target.data(), 100) == std::vector<std::byte>(100));
}

TEST_CASE("integers are neither converted nor scaled") {
  Gpu gpu;
  const TensorCopy tensor{nullptr, nullptr, 1, DataType::int32, DataType::float32};
  const Status converted_status = gpu.kernels.copy(gpu.stream, std::span(&tensor, 1));
  CHECK(converted_status.code() == ErrorCode::unsupported);
  CHECK_THAT(converted_status.message(), Catch::Contains("int32"));
  float dummy = 0;
  const TensorCopy scaled{&dummy, &dummy, 1, DataType::int64, DataType::int64};
  CHECK(gpu.kernels.copy(gpu.stream, std::span(&scaled, 1), 0.5).code() == ErrorCode::unsupported);
  CHECK(cuda_double().calls_of("cuLaunchKernel") == 0);
}

// The code in a fatbin: a header of 16 bytes, then for each part its kind (1 for PTX, 2 for machine
// code), the lengths of its header and of what follows, and its architecture.
std::set<std::string> parts_of(std::span<const std::byte> image) {
  const auto number = [&](std::size_t at) { return read<std::uint32_t>(image.data() + at); };
  REQUIRE(image.size() > 16);
  REQUIRE(number(0) == 0xba55ed50);
  std::set<std::string> parts;
  std::size_t at = 16;
  while (at + 32 <= image.size()) {
    const std::uint32_t kind = number(at) & 0xffff;
    parts.insert(str(kind == 1 ? "ptx " : "sm_", number(at + 28)));
    at += number(at + 4) + read<std::uint64_t>(image.data() + at + 8);
  }
  return parts;
}

TEST_CASE("the library has code for each architecture, and PTX for those to come") {
  if (kernel_image().empty()) {
    WARN("built without nvcc: there are no kernels");
    return;
  }
  const auto parts = parts_of(kernel_image());
  CHECK(parts.size() >= 2);
  CHECK(parts.count("sm_90") == 1);
  CHECK(std::any_of(parts.begin(), parts.end(),
                    [](const std::string& part) { return part.starts_with("ptx "); }));
  for (const std::string& part : parts) {
    if (part.starts_with("sm_"))
      CHECK_THAT(std::string(kernel_image_origin()), Catch::Contains(part));
  }
}

TEST_CASE("kernels that cannot be loaded say what they are for, and what is here") {
  const CudaFixture fixture({.version = 12040, .compute_capability = 75, .loads_modules = false});
  const auto kernels = BatchKernels::load(CudaFixture::device(), any_image);
  REQUIRE_FALSE(kernels.ok());
  CHECK(kernels.status().code() == ErrorCode::unsupported);
  CHECK_THAT(kernels.status().to_string(), Catch::Contains("Test Double (sm_75)") &&
                                               Catch::Contains("CUDA_ERROR_NO_BINARY_FOR_GPU"));
  cuda_double().reset();
  cuda_double().fail("cuModuleGetFunction", 2, 500);
  const auto incomplete = BatchKernels::load(CudaFixture::device(), any_image);
  CHECK_THAT(incomplete.status().to_string(), Catch::Contains("cuModuleGetFunction of rueda_"));
  const auto absent = BatchKernels::load(CudaFixture::device(), std::span<const std::byte>{});
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.status().code() == ErrorCode::unsupported);
  CHECK_THAT(absent.status().message(), Catch::Contains("built without CUDA kernels"));
}

TEST_CASE("a kernel that reaches for memory of the host fails, and the device with it") {
  Gpu gpu;
  std::vector<float> host(8);
  const DeviceMemory target = on_device(gpu.stream, host);
  const TensorCopy tensor{host.data(), target.data(), 8, DataType::float32, DataType::float32};
  REQUIRE(gpu.kernels.copy(gpu.stream, std::span(&tensor, 1)).ok());
  const Status status = gpu.stream.wait_until_idle(soon());
  CHECK_THAT(status.message(), Catch::Contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
  CHECK(cuda_double().take_misuse().size() == 1);
}

}  // namespace
}  // namespace rueda::test::cuda_kernels_test
