// Lets the kernels of csrc/cuda/kernels be compiled as plain C++: a thread of the grid is a call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/float16.h"

// What nvcc understands by itself.
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

namespace rueda::cuda {

struct Index {
  std::uint32_t x = 0;
};
inline thread_local Index threadIdx;
inline thread_local Index blockIdx;
inline thread_local Index blockDim;

}  // namespace rueda::cuda

namespace rueda::test {
// Throws where an address is neither a device's nor pinned memory.
std::byte* memory_of_kernel(std::uint64_t address);
}  // namespace rueda::test

namespace rueda::cuda {

template <class T>
T* memory_at(std::uint64_t address) {
  return reinterpret_cast<T*>(test::memory_of_kernel(address));
}

inline float widen_float16(std::uint16_t bits) {
  return float16_to_float(bits);
}
inline std::uint16_t narrow_to_float16(float value) {
  return float_to_float16(value);
}
inline float widen_bfloat16(std::uint16_t bits) {
  return bfloat16_to_float(bits);
}
inline std::uint16_t narrow_to_bfloat16(float value) {
  return float_to_bfloat16(value);
}

}  // namespace rueda::cuda
