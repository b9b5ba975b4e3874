// Arrays of any element type for tests of the kernels, and a GPU to run them on.
#pragma once

#include <array>
#include <random>
#include <type_traits>
#include <vector>

#include "cuda/batch_kernels.h"
#include "reduce/element.h"
#include "unit/cuda/cuda_fixture.h"

namespace rueda::test {

inline constexpr std::array float_types{DataType::float16, DataType::bfloat16, DataType::float32,
                                        DataType::float64};

// An image for the double, which has the kernels built in.
inline constexpr std::array<std::byte, 16> any_image{};

// One GPU with a stream and the kernels.
struct Gpu {
  CudaFixture fixture;
  DeviceReference device = CudaFixture::device();
  CudaStream stream = take(CudaStream::create(device), "stream");
  BatchKernels kernels = take(BatchKernels::load(device, any_image), "kernels");
};

inline std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Ordinary numbers encoded in any floating-point type.
inline std::vector<std::byte> random_floats(DataType dtype, std::size_t count, unsigned seed) {
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

inline double element_at(DataType dtype, const std::byte* array, std::int64_t index) {
  double value = 0;
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_floating_point_v<typename Element::Value>)
      value = static_cast<double>(load<Element>(array, index));
  });
  return value;
}

inline void set_element(DataType dtype, std::byte* array, std::int64_t index, double value) {
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_floating_point_v<typename Element::Value>)
      store<Element>(array, index, static_cast<typename Element::Value>(value));
  });
}

// Reference for copy(), element by element.
inline std::vector<std::byte> converted(const std::vector<std::byte>& source, DataType from,
                                        DataType to, double scale) {
  const auto count = static_cast<std::int64_t>(source.size() / size_of(from));
  std::vector<std::byte> result(static_cast<std::size_t>(count) * size_of(to));
  const bool in_double = from == DataType::float64 || to == DataType::float64;
  for (std::int64_t i = 0; i < count; ++i) {
    const double taken = element_at(from, source.data(), i);
    const double value =
        in_double ? taken * scale
                  : static_cast<double>(static_cast<float>(taken) * static_cast<float>(scale));
    set_element(to, result.data(), i, value);
  }
  return result;
}

}  // namespace rueda::test
