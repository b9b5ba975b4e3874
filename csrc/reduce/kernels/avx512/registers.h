// AVX-512 (F, BW, DQ, VL): what the kernels need beyond arithmetic on vectors.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace rueda::avx512 {

inline constexpr char name[] = "avx512";
inline constexpr std::size_t register_bytes = 64;
inline constexpr std::size_t register_count = 32;

using Bytes [[gnu::vector_size(64)]] = std::uint8_t;
using Floats [[gnu::vector_size(64)]] = float;
using Doubles [[gnu::vector_size(64)]] = double;
using Bits [[gnu::vector_size(64)]] = std::uint32_t;

// Of two NaNs the first must win, whatever registers the compiler prefers. It believes that these
// operations commute, but the instructions do not.
[[gnu::always_inline]] inline Floats add(Floats a, Floats b) {
  Floats result;
  asm("vaddps %2, %1, %0" : "=v"(result) : "v"(a), "vm"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles add(Doubles a, Doubles b) {
  Doubles result;
  asm("vaddpd %2, %1, %0" : "=v"(result) : "v"(a), "vm"(b));
  return result;
}
[[gnu::always_inline]] inline Floats multiply(Floats a, Floats b) {
  Floats result;
  asm("vmulps %2, %1, %0" : "=v"(result) : "v"(a), "vm"(b));
  return result;
}
[[gnu::always_inline]] inline Doubles multiply(Doubles a, Doubles b) {
  Doubles result;
  asm("vmulpd %2, %1, %0" : "=v"(result) : "v"(a), "vm"(b));
  return result;
}

[[gnu::always_inline]] inline void stream(std::byte* to, Bytes value) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
}
[[gnu::always_inline]] inline void finish_streams() {
  _mm_sfence();
}

// The first `bytes` of a 64-byte line; the rest of it reads as zero and is not written.
[[gnu::always_inline]] inline __mmask64 first(std::size_t bytes) {
  return bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
}
[[gnu::always_inline]] inline void read_part(std::byte* line, const std::byte* from,
                                             std::size_t bytes) {
  _mm512_storeu_si512(line, _mm512_maskz_loadu_epi8(first(bytes), from));
}
[[gnu::always_inline]] inline void write_part(std::byte* to, const std::byte* line,
                                              std::size_t bytes) {
  _mm512_mask_storeu_epi8(to, first(bytes), _mm512_loadu_si512(line));
}

// A register of float16 as float32: the first half, and the second.
inline constexpr bool float16_in_pairs = false;
struct Widened {
  Floats part[2];
};
[[gnu::always_inline]] inline Widened widen_float16(const std::byte* from) {
  const auto* halves = reinterpret_cast<const __m256i*>(from);
  return {{reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(halves))),
           reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(halves + 1)))}};
}
[[gnu::always_inline]] inline Bytes narrow_float16(const Widened& value) {
  constexpr int to_nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const auto low = _mm512_cvtps_ph(reinterpret_cast<__m512>(value.part[0]), to_nearest);
  const auto high = _mm512_cvtps_ph(reinterpret_cast<__m512>(value.part[1]), to_nearest);
  return reinterpret_cast<Bytes>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

// Converts four registers of numbers from -127 to 127, rounded to nearest even, to one of signed
// bytes.
[[gnu::always_inline]] inline Bytes narrow_to_bytes(const Floats (&values)[4]) {
  __m128i parts[4];
  for (int i = 0; i < 4; ++i) {
    parts[i] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(reinterpret_cast<__m512>(values[i])));
  }
  Bytes bytes;
  __builtin_memcpy(&bytes, parts, sizeof(bytes));
  return bytes;
}
// Converts as many signed bytes as a register has floats.
[[gnu::always_inline]] inline Floats widen_bytes(const std::byte* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

}  // namespace rueda::avx512
