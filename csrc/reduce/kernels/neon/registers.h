// NEON, which every aarch64 has: what the kernels need beyond arithmetic on vectors.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "reduce/kernels/parts_of_lines.h"

namespace rueda::neon {

inline constexpr char name[] = "neon";
inline constexpr std::size_t register_bytes = 16;
inline constexpr std::size_t register_count = 32;

using Bytes [[gnu::vector_size(16)]] = std::uint8_t;
using Floats [[gnu::vector_size(16)]] = float;
using Doubles [[gnu::vector_size(16)]] = double;
using Bits [[gnu::vector_size(16)]] = std::uint32_t;

// Of two NaNs the first must win, whatever registers the compiler prefers. It believes that these
// operations commute, but the instructions do not.
[[gnu::always_inline]] inline Floats add(Floats a, Floats b) {
  Floats result;
  asm("fadd %0.4s, %1.4s, %2.4s" : "=w"(result) : "w"(a), "w"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles add(Doubles a, Doubles b) {
  Doubles result;
  asm("fadd %0.2d, %1.2d, %2.2d" : "=w"(result) : "w"(a), "w"(b));
  return result;
}
[[gnu::always_inline]] inline Floats multiply(Floats a, Floats b) {
  Floats result;
  asm("fmul %0.4s, %1.4s, %2.4s" : "=w"(result) : "w"(a), "w"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles multiply(Doubles a, Doubles b) {
  Doubles result;
  asm("fmul %0.2d, %1.2d, %2.2d" : "=w"(result) : "w"(a), "w"(b));
  return result;
}

// These CPUs detect on their own that whole lines are overwritten.
[[gnu::always_inline]] inline void stream(std::byte* to, Bytes value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
[[gnu::always_inline]] inline void finish_streams() {}

// A register of float16 as float32: the first half, and the second.
inline constexpr bool float16_in_pairs = false;
struct Widened {
  Floats part[2];
};
[[gnu::always_inline]] inline Widened widen_float16(const std::byte* from) {
  float16x4_t halves[2];
  __builtin_memcpy(halves, from, sizeof(halves));
  return {{reinterpret_cast<Floats>(vcvt_f32_f16(halves[0])),
           reinterpret_cast<Floats>(vcvt_f32_f16(halves[1]))}};
}
[[gnu::always_inline]] inline Bytes narrow_float16(const Widened& value) {
  const auto low = vcvt_f16_f32(reinterpret_cast<float32x4_t>(value.part[0]));
  return reinterpret_cast<Bytes>(
      vcvt_high_f16_f32(low, reinterpret_cast<float32x4_t>(value.part[1])));
}

// Converts four registers of numbers from -127 to 127, rounded to nearest even, to one of signed
// bytes.
[[gnu::always_inline]] inline Bytes narrow_to_bytes(const Floats (&values)[4]) {
  const auto integers = [&](int i) __attribute__((always_inline)) {
    return vmovn_s32(vcvtnq_s32_f32(reinterpret_cast<float32x4_t>(values[i])));
  };
  const int16x8_t low = vcombine_s16(integers(0), integers(1));
  const int16x8_t high = vcombine_s16(integers(2), integers(3));
  return reinterpret_cast<Bytes>(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
// Converts as many signed bytes as a register has floats.
[[gnu::always_inline]] inline Floats widen_bytes(const std::byte* from) {
  using Small [[gnu::vector_size(4)]] = std::int8_t;
  using Integers [[gnu::vector_size(16)]] = std::int32_t;
  Small bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, Integers), Floats);
}

}  // namespace rueda::neon
