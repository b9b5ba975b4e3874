// SSE2, which every x86-64 has: what the kernels need beyond arithmetic on vectors.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

#include "reduce/kernels/parts_of_lines.h"

namespace rueda::baseline {

inline constexpr char name[] = "baseline";
inline constexpr std::size_t register_bytes = 16;
inline constexpr std::size_t register_count = 16;

using Bytes [[gnu::vector_size(16)]] = std::uint8_t;
using Floats [[gnu::vector_size(16)]] = float;
using Doubles [[gnu::vector_size(16)]] = double;
using Bits [[gnu::vector_size(16)]] = std::uint32_t;
using Integers [[gnu::vector_size(16)]] = std::int32_t;

// Of two NaNs the first must win, whatever registers the compiler prefers. It believes that these
// operations commute, but the instructions do not.
[[gnu::always_inline]] inline Floats add(Floats a, Floats b) {
  asm("addps %1, %0" : "+x"(a) : "x"(b));
  return a;
}
[[gnu::always_inline]] inline Doubles add(Doubles a, Doubles b) {
  asm("addpd %1, %0" : "+x"(a) : "x"(b));
  return a;
}
[[gnu::always_inline]] inline Floats multiply(Floats a, Floats b) {
  asm("mulps %1, %0" : "+x"(a) : "x"(b));
  return a;
}
[[gnu::always_inline]] inline Doubles multiply(Doubles a, Doubles b) {
  asm("mulpd %1, %0" : "+x"(a) : "x"(b));
  return a;
}

[[gnu::always_inline]] inline void stream(std::byte* to, Bytes value) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
}
[[gnu::always_inline]] inline void finish_streams() {
  _mm_sfence();
}

// A register of float16 as float32: the elements at even places, and those at odd ones. Computed as
// in reduce/float16.h, which explains it.
inline constexpr bool float16_in_pairs = true;
struct Widened {
  Floats part[2];
};

[[gnu::always_inline]] inline Floats widen_lower_half(Integers half) {
  const Integers magnitude = half & 0x7fff;
  constexpr int rebias = (127 - 15) << 23;
  const Integers normal = (magnitude << 13) + rebias;
  const Integers infinite_or_nan = normal + rebias;
  const Floats units = __builtin_convertvector(magnitude, Floats) * 0x1p-24F;
  const Integers finite = magnitude < 0x0400 ? reinterpret_cast<Integers>(units) : normal;
  const Integers bits = magnitude > 0x7bff ? infinite_or_nan : finite;
  return reinterpret_cast<Floats>(bits | ((half & 0x8000) << 16));
}

[[gnu::always_inline]] inline Integers narrow_to_lower_half(Floats value) {
  const auto bits = reinterpret_cast<Integers>(value);
  const Integers magnitude = bits & 0x7fffffff;
  constexpr int too_large = (127 + 16) << 23;
  constexpr int smallest_normal = (127 - 14) << 23;
  const Integers limit = Integers{} + too_large;
  const Integers rebiased = (magnitude < limit ? magnitude : limit) - ((127 - 15) << 23);
  const Integers normal = (rebiased + 0x0fff + ((rebiased >> 13) & 1)) >> 13;
  const Integers subnormal =
      reinterpret_cast<Integers>(reinterpret_cast<Floats>(magnitude) + 0.5F) - (126 << 23);
  const Integers nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
  const Integers number = magnitude < smallest_normal ? subnormal : normal;
  const Integers result = magnitude > 0x7f800000 ? nan : number;
  return result | ((bits >> 16) & 0x8000);
}

[[gnu::always_inline]] inline Widened widen_float16(const std::byte* from) {
  Bits pairs;
  __builtin_memcpy(&pairs, from, sizeof(pairs));
  return {{widen_lower_half(reinterpret_cast<Integers>(pairs & 0xffff)),
           widen_lower_half(reinterpret_cast<Integers>(pairs >> 16))}};
}
[[gnu::always_inline]] inline Bytes narrow_float16(const Widened& value) {
  return reinterpret_cast<Bytes>(narrow_to_lower_half(value.part[0]) |
                                 (narrow_to_lower_half(value.part[1]) << 16));
}

// Converts four registers of numbers from -127 to 127, rounded to nearest even, to one of signed
// bytes.
[[gnu::always_inline]] inline Bytes narrow_to_bytes(const Floats (&values)[4]) {
  const auto integers = [&](int i) __attribute__((always_inline)) {
    return _mm_cvtps_epi32(reinterpret_cast<__m128>(values[i]));
  };
  const __m128i low = _mm_packs_epi32(integers(0), integers(1));
  const __m128i high = _mm_packs_epi32(integers(2), integers(3));
  return reinterpret_cast<Bytes>(_mm_packs_epi16(low, high));
}
// Converts as many signed bytes as a register has floats.
[[gnu::always_inline]] inline Floats widen_bytes(const std::byte* from) {
  using Small [[gnu::vector_size(4)]] = std::int8_t;
  Small bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, Integers), Floats);
}

}  // namespace rueda::baseline
