// The two 16-bit floating-point formats, converted to float32 and back.
//
// Widening is exact. Narrowing rounds to nearest, ties to even; values that are too large become
// infinite, and a NaN stays a NaN and becomes quiet. All cases are computed for every number and
// then selected, without branches, so that loops over these functions are vectorised. No subnormal
// float32 that matters is made or read: a process that flushes those to zero gets the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace rueda {

// float16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. float32: 1, 8 (bias 127), 23.
[[nodiscard]] inline float float16_to_float(std::uint16_t half) {
  const std::int32_t magnitude = half & 0x7fff;
  const std::int32_t rebias = (127 - 15) << 23;
  const std::int32_t normal = (magnitude << 13) + rebias;
  const std::int32_t infinite_or_nan = normal + rebias;  // the largest exponent of either format
  // A subnormal counts units of 2^-24: a conversion from integer, where shifting would need a loop.
  const auto subnormal = std::bit_cast<std::int32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  const std::int32_t finite = magnitude < 0x0400 ? subnormal : normal;
  const std::int32_t bits = magnitude >= 0x7c00 ? infinite_or_nan : finite;
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) |
                              (static_cast<std::uint32_t>(half & 0x8000) << 16));
}

[[nodiscard]] inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffff);
  const std::int32_t too_large = (127 + 16) << 23;        // 2^16, which rounds to infinity
  const std::int32_t smallest_normal = (127 - 14) << 23;  // 2^-14
  const std::int32_t bounded = magnitude < too_large ? magnitude : too_large;
  const std::int32_t rebiased = bounded - ((127 - 15) << 23);
  // Half a unit less one, plus the last bit kept: a tie carries only into an odd one. The carry may
  // run into the exponent, where it is right too.
  const std::int32_t normal = (rebiased + 0x0fff + ((rebiased >> 13) & 1)) >> 13;
  // Floats from 0.5 to 1 count in units of 2^-24, as subnormal float16 do: the addition rounds.
  const std::int32_t subnormal =
      std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126 << 23);
  const std::int32_t nan = 0x7e00 | (magnitude >> 13 & 0x03ff);
  const std::int32_t number = magnitude < smallest_normal ? subnormal : normal;
  const std::int32_t result = magnitude > 0x7f800000 ? nan : number;
  return static_cast<std::uint16_t>(static_cast<std::uint32_t>(result) | (bits >> 16 & 0x8000));
}

// bfloat16: the upper half of a float32.
[[nodiscard]] inline float bfloat16_to_float(std::uint16_t bfloat) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat) << 16);
}

[[nodiscard]] inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const std::uint32_t quiet = bits >> 16 | 0x0040;
  const bool is_nan = static_cast<std::int32_t>(bits & 0x7fffffff) > 0x7f800000;
  return static_cast<std::uint16_t>(is_nan ? quiet : rounded);
}

}  // namespace rueda
