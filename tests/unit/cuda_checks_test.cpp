// The search for infinities, and quantisation, run as plain C++ by the double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda_arrays.h"

namespace rueda::test::cuda_checks_test {
namespace {

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

}  // namespace
}  // namespace rueda::test::cuda_checks_test
