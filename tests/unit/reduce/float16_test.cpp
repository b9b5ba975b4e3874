// Conversions between the 16-bit floating-point formats and float32, against their definition.
#include "reduce/float16.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "unit/reduce/sixteen_bit_reference.h"

namespace rueda::test::float16_test {
namespace {

struct Conversion {
  std::string name;
  SixteenBitFormat format;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  // NaNs keep their sign and are quiet; every other value has exactly one correct result.
  [[nodiscard]] bool is_right(float value) const {
    const std::uint16_t narrowed = narrow(value);
    const std::uint16_t expected = format.encode(value);
    if (!std::isnan(value)) return narrowed == expected;
    const int quiet_bit = 1 << (format.mantissa_bits - 1);
    return (narrowed & 0x7fff) > format.infinity() && (narrowed & quiet_bit) != 0 &&
           (narrowed & 0x8000) == (expected & 0x8000);
  }
};

std::vector<Conversion> conversions() {
  return {{"float16", float16_format, float16_to_float, float_to_float16},
          {"bfloat16", bfloat16_format, bfloat16_to_float, float_to_bfloat16}};
}

TEST_CASE("every 16-bit number widens exactly and comes back") {
  for (const Conversion& conversion : conversions()) {
    CAPTURE(conversion.name);
    int wrong = 0;
    for (int i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const float widened = conversion.widen(bits);
      const double expected = conversion.format.decode(bits);
      if (std::isnan(expected)) {
        const int quiet = bits | 1 << (conversion.format.mantissa_bits - 1);
        if (!std::isnan(widened) || conversion.narrow(widened) != quiet) ++wrong;
      } else if (widened != expected || std::signbit(widened) != std::signbit(expected) ||
                 conversion.narrow(widened) != bits) {
        ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("between any two neighbours the middle goes to the even one, the rest to the nearer") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Conversion& conversion : conversions()) {
    CAPTURE(conversion.name);
    int wrong = 0;
    for (int i = 0; i + 1 < conversion.format.infinity(); ++i) {
      const auto below = static_cast<std::uint16_t>(i);
      const auto above = static_cast<std::uint16_t>(i + 1);
      const auto middle = static_cast<float>(
          (conversion.format.decode(below) + conversion.format.decode(above)) / 2);
      const std::uint16_t even = i % 2 == 0 ? below : above;
      for (const float sign : {1.0F, -1.0F}) {
        const auto narrowed = [&](float value) {
          return (conversion.narrow(sign * value) & 0x7fff) |
                 (std::signbit(sign) == ((conversion.narrow(sign * value) & 0x8000) != 0)
                      ? 0
                      : 1 << 20);
        };
        if (narrowed(middle) != even) ++wrong;
        if (narrowed(std::nextafter(middle, 0.0F)) != below) ++wrong;
        if (narrowed(std::nextafter(middle, infinity)) != above) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("random float32 bit patterns narrow as the definition says") {
  std::mt19937 random(1);
  for (const Conversion& conversion : conversions()) {
    CAPTURE(conversion.name);
    int wrong = 0;
    for (int i = 0; i < 300'000; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      // Half of them in float16's range, where rounding happens.
      const float value = i % 2 == 0
                              ? std::bit_cast<float>(bits)
                              : std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)),
                                           static_cast<int>(bits % 48) - 62);
      if (!conversion.is_right(value)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the ends of the ranges") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(float_to_float16(65504.0F) == 0x7bff);
  CHECK(float_to_float16(65519.996F) == 0x7bff);
  CHECK(float_to_float16(65520.0F) == 0x7c00);
  CHECK(float_to_float16(-infinity) == 0xfc00);
  CHECK(float_to_float16(0x1p-24F) == 0x0001);
  CHECK(float_to_float16(0x1p-25F) == 0x0000);
  CHECK(float_to_float16(-0x1.8p-25F) == 0x8001);
  CHECK(float_to_float16(std::numeric_limits<float>::denorm_min()) == 0x0000);
  CHECK(float_to_bfloat16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(float_to_bfloat16(0x1.fep127F) == 0x7f7f);
  CHECK(float_to_bfloat16(-infinity) == 0xff80);
  // A NaN whose payload is in the dropped bits must not become an infinity.
  for (const std::uint32_t nan :
       {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU, 0x7fc00000U}) {
    for (const Conversion& conversion : conversions()) {
      CAPTURE(conversion.name, nan);
      CHECK(conversion.is_right(std::bit_cast<float>(nan)));
    }
  }
}

}  // namespace
}  // namespace rueda::test::float16_test
