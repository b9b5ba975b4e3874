// The kernels, run as plain C++ by the double, against element-by-element references.
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "cuda/batch_kernels.h"
#include "cuda/kernels/batch.h"
#include "cuda_fixture.h"
#include "reduce/element.h"

namespace rueda::test {
namespace {

constexpr std::array float_types{DataType::float16, DataType::bfloat16, DataType::float32,
                                 DataType::float64};

// What the double takes for an image: it has the kernels itself.
constexpr std::array<std::byte, 16> any_image{};

// One GPU with a stream and the kernels.
struct Gpu {
  CudaFixture fixture;
  DeviceReference device = CudaFixture::device();
  CudaStream stream = take(CudaStream::create(device), "stream");
  BatchKernels kernels = take(BatchKernels::load(device, any_image), "kernels");
};

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Ordinary numbers of any floating-point type, as it stores them.
std::vector<std::byte> random_floats(DataType dtype, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 100);
  std::vector<std::byte> bytes(count * size_of(dtype));
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_floating_point_v<typename Element::Value>) {
      for (std::size_t i = 0; i < count; ++i) {
        store<Element>(bytes.data(), static_cast<std::int64_t>(i),
                       static_cast<typename Element::Value>(normal(random)));
      }
    }
  });
  return bytes;
}

double element_at(DataType dtype, const std::byte* array, std::int64_t index) {
  double value = 0;
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_floating_point_v<typename Element::Value>)
      value = static_cast<double>(load<Element>(array, index));
  });
  return value;
}

// What copy() promises, one element after the other.
std::vector<std::byte> converted(const std::vector<std::byte>& source, DataType from, DataType to,
                                 double scale) {
  const auto count = static_cast<std::int64_t>(source.size() / size_of(from));
  std::vector<std::byte> result(static_cast<std::size_t>(count) * size_of(to));
  const bool in_double = from == DataType::float64 || to == DataType::float64;
  for (std::int64_t i = 0; i < count; ++i) {
    const double taken = element_at(from, source.data(), i);
    const double value =
        in_double ? taken * scale
                  : static_cast<double>(static_cast<float>(taken) * static_cast<float>(scale));
    with_element(to, [&](auto element) {
      using Element = decltype(element);
      if constexpr (std::is_floating_point_v<typename Element::Value>)
        store<Element>(result.data(), i, static_cast<typename Element::Value>(value));
    });
  }
  return result;
}

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
    // From nothing to several tiles.
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
  // Tensors without elements are not counted.
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
  CHECK(gpu.kernels.check_finite(gpu.stream, std::vector<TensorCheck>(2), nullptr).ok());
  CHECK(gpu.kernels.quantize(gpu.stream, std::vector<TensorQuantization>(2)).ok());
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
  const TensorCheck check{&dummy, 1, DataType::boolean};
  CHECK(gpu.kernels.check_finite(gpu.stream, std::span(&check, 1), &dummy).code() ==
        ErrorCode::unsupported);
  CHECK(cuda_double().calls_of("cuLaunchKernel") == 0);
}

TEST_CASE("one infinity or NaN anywhere sets the flag, and nothing else does") {
  Gpu gpu;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DataType dtype : float_types) {
    for (const double bad : {1.0, infinity, -infinity, std::nan("")}) {
      for (const std::int64_t place : {0, 5, 4095, 9000}) {
        CAPTURE(name_of(dtype), bad, place);
        auto content = random_floats(dtype, 9001, 4);
        with_element(dtype, [&](auto element) {
          using Element = decltype(element);
          if constexpr (std::is_floating_point_v<typename Element::Value>)
            store<Element>(content.data(), place, static_cast<typename Element::Value>(bad));
        });
        const DeviceMemory first = on_device(gpu.stream, random_floats(dtype, 3, 1));
        const DeviceMemory second = on_device(gpu.stream, content);
        const DeviceMemory flag = on_device(gpu.stream, std::vector<float>{0});
        REQUIRE(gpu.kernels
                    .check_finite(gpu.stream,
                                  std::vector<TensorCheck>{{first.data(), 3, dtype},
                                                           {second.data(), 9001, dtype}},
                                  reinterpret_cast<float*>(flag.data()))
                    .ok());
        REQUIRE(on_host<float>(gpu.stream, flag.data(), 1)[0] == (bad == 1.0 ? 0.0F : 1.0F));
      }
    }
  }
}

// Quantises and restores `content`; returns what the host reads.
std::vector<float> round_trip(Gpu& gpu, const std::vector<std::byte>& content, DataType dtype,
                              double scale) {
  const std::size_t count = content.size() / size_of(dtype);
  const DeviceMemory values = on_device(gpu.stream, content);
  const auto codes = take(DeviceMemory::allocate(gpu.device, count), "allocate");
  const auto scales =
      take(DeviceMemory::allocate(gpu.device, 4 * quantized_scales(count)), "allocate");
  const auto restored = take(DeviceMemory::allocate(gpu.device, 4 * count), "allocate");
  const TensorQuantization down{values.data(), codes.data(), scales.data(), count, dtype};
  const TensorQuantization up{restored.data(), codes.data(), scales.data(), count,
                              DataType::float32};
  expect_ok(gpu.kernels.quantize(gpu.stream, std::span(&down, 1), scale), "quantize");
  expect_ok(gpu.kernels.dequantize(gpu.stream, std::span(&up, 1)), "dequantize");
  return on_host<float>(gpu.stream, restored.data(), count);
}

TEST_CASE("quantised elements come back within half a step of their block") {
  Gpu gpu;
  for (const DataType dtype : float_types) {
    for (const std::size_t count : {1, 31, 32, 33, 1000, 8193}) {
      CAPTURE(name_of(dtype), count);
      const auto content = random_floats(dtype, count, 6);
      const auto restored = round_trip(gpu, content, dtype, 0.5);
      for (std::size_t begin = 0; begin < count; begin += 32) {
        const std::size_t end = std::min(count, begin + 32);
        double largest = 0;
        for (std::size_t i = begin; i < end; ++i)
          largest = std::max(
              largest, std::abs(0.5 * element_at(dtype, content.data(), static_cast<long>(i))));
        for (std::size_t i = begin; i < end; ++i) {
          const double value = 0.5 * element_at(dtype, content.data(), static_cast<long>(i));
          REQUIRE(std::abs(restored[i] - value) <= largest / 127 * 0.50001);
        }
      }
    }
  }
}

TEST_CASE("zeros, tiny numbers and overflows survive quantisation as what they are") {
  Gpu gpu;
  std::vector<float> values(96, 0.0F);
  values[32] = 1e-45F;  // the smallest float32
  values[33] = 3e-44F;
  values[64] = std::numeric_limits<float>::infinity();
  values[65] = 1.0F;
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  const auto restored =
      round_trip(gpu, std::vector<std::byte>(bytes, bytes + 384), DataType::float32, 1.0);
  for (int i = 0; i < 32; ++i) CHECK(restored[static_cast<std::size_t>(i)] == 0.0F);
  for (int i = 32; i < 64; ++i) CHECK(std::abs(restored[static_cast<std::size_t>(i)]) <= 2e-43F);
  for (int i = 64; i < 96; ++i) CHECK(std::isnan(restored[static_cast<std::size_t>(i)]));
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
  cuda_double().fail("cuModuleGetFunction", 3, 500);
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
}  // namespace rueda::test
