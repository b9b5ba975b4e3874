// What the kernels need from their target: here a GPU, through nvcc. The tests have their own
// target.h, with which the same kernels run as plain C++.
#pragma once

#include <cstdint>

namespace rueda::cuda {

// Memory at a GPU address.
template <class T>
__device__ __forceinline__ T* memory_at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// Narrowing rounds to nearest, ties to even. Both directions are single instructions.
__device__ __forceinline__ float widen_float16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ std::uint16_t narrow_to_float16(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ float widen_bfloat16(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ std::uint16_t narrow_to_bfloat16(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

}  // namespace rueda::cuda
