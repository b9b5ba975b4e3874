// 16-bit floating-point formats from their definition: slow, simple, and independent of the
// library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace rueda::test {

struct SixteenBitFormat {
  int mantissa_bits;
  int bias;

  [[nodiscard]] int infinity() const { return (2 * bias + 1) << mantissa_bits; }

  [[nodiscard]] double decode(std::uint16_t bits) const {
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const int magnitude = bits & 0x7fff;
    if (magnitude > infinity()) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude == infinity()) return sign * std::numeric_limits<double>::infinity();
    const int exponent = magnitude >> mantissa_bits;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    const int leading = exponent == 0 ? 0 : 1 << mantissa_bits;
    return sign * std::ldexp(mantissa + leading, std::max(exponent, 1) - bias - mantissa_bits);
  }

  // Rounds to nearest, ties to even (nearbyint does, in the default rounding mode).
  [[nodiscard]] std::uint16_t encode(double value) const {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value))
      return static_cast<std::uint16_t>(sign | infinity() | 1 << (mantissa_bits - 1));
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return static_cast<std::uint16_t>(sign);
    const int exponent = std::isinf(value) ? bias + 1 : std::max(std::ilogb(magnitude), 1 - bias);
    if (exponent > bias) return static_cast<std::uint16_t>(sign | infinity());
    const auto units =
        static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
    // A carry out of the mantissa increments the exponent, up to infinity.
    return static_cast<std::uint16_t>(sign | (((exponent + bias - 1) << mantissa_bits) + units));
  }
};

inline constexpr SixteenBitFormat float16_format{10, 15};
inline constexpr SixteenBitFormat bfloat16_format{7, 127};

}  // namespace rueda::test
