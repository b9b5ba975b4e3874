// AVX2 and F16C: what the kernels need beyond arithmetic on vectors.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reduce/kernels/parts_of_lines.h"

namespace rueda::avx2 {

inline constexpr char name[] = "avx2";
inline constexpr std::size_t register_bytes = 32;
inline constexpr std::size_t register_count = 16;

using Bytes [[gnu::vector_size(32)]] = std::uint8_t;
using Floats [[gnu::vector_size(32)]] = float;
using Doubles [[gnu::vector_size(32)]] = double;
using Bits [[gnu::vector_size(32)]] = std::uint32_t;

// Of two NaNs the first must win, whatever registers the compiler prefers. It believes that these
// operations commute, but the instructions do not.
[[gnu::always_inline]] inline Floats add(Floats a, Floats b) {
  Floats result;
  asm("vaddps %2, %1, %0" : "=x"(result) : "x"(a), "xm"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles add(Doubles a, Doubles b) {
  Doubles result;
  asm("vaddpd %2, %1, %0" : "=x"(result) : "x"(a), "xm"(b));
  return result;
}
[[gnu::always_inline]] inline Floats multiply(Floats a, Floats b) {
  Floats result;
  asm("vmulps %2, %1, %0" : "=x"(result) : "x"(a), "xm"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles multiply(Doubles a, Doubles b) {
  Doubles result;
  asm("vmulpd %2, %1, %0" : "=x"(result) : "x"(a), "xm"(b));
  return result;
}

[[gnu::always_inline]] inline void stream(std::byte* to, Bytes value) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
}
[[gnu::always_inline]] inline void finish_streams() {
  _mm_sfence();
}

// A register of float16 as float32: the first half, and the second.
inline constexpr bool float16_in_pairs = false;
struct Widened {
  Floats part[2];
};
[[gnu::always_inline]] inline Widened widen_float16(const std::byte* from) {
  const auto* halves = reinterpret_cast<const __m128i*>(from);
  return {{reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(halves))),
           reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(halves + 1)))}};
}
[[gnu::always_inline]] inline Bytes narrow_float16(const Widened& value) {
  constexpr int to_nearest = _MM_FROUND_TO_NEAREST_INT;
  const auto low = _mm256_cvtps_ph(reinterpret_cast<__m256>(value.part[0]), to_nearest);
  const auto high = _mm256_cvtps_ph(reinterpret_cast<__m256>(value.part[1]), to_nearest);
  return reinterpret_cast<Bytes>(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

// Converts four registers of numbers from -127 to 127, rounded to nearest even, to one of signed
// bytes.
[[gnu::always_inline]] inline Bytes narrow_to_bytes(const Floats (&values)[4]) {
  const auto integers = [&](int i) __attribute__((always_inline)) {
    return _mm256_cvtps_epi32(reinterpret_cast<__m256>(values[i]));
  };
  const __m256i low = _mm256_packs_epi32(integers(0), integers(1));
  const __m256i high = _mm256_packs_epi32(integers(2), integers(3));
  // Packing stays within the halves of the register, so groups of four come out of order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return reinterpret_cast<Bytes>(_mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}
// Converts as many signed bytes as a register has floats.
[[gnu::always_inline]] inline Floats widen_bytes(const std::byte* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Floats>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}

}  // namespace rueda::avx2
