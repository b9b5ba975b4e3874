// Scalar reference for reduce(), scale(), divide() and fill_identity(): an independent
// implementation of include/rueda/types.h in plain arithmetic.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "rueda/types.h"
#include "unit/reduce/sixteen_bit_reference.h"

namespace rueda::test {

using Bytes = std::vector<std::byte>;

// The C++ type T in which an element of `id` is computed, and its accessors.
template <DataType id, class T>
struct Type {
  using Value = T;
  static constexpr DataType dtype = id;
  static constexpr std::size_t size = size_of(id);
  static constexpr bool is_sixteen_bit_float = id == DataType::float16 || id == DataType::bfloat16;

  [[nodiscard]] static const SixteenBitFormat& format() {
    return id == DataType::float16 ? float16_format : bfloat16_format;
  }

  [[nodiscard]] static T decode(const std::byte* from) {
    if constexpr (is_sixteen_bit_float) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, size);
      return static_cast<T>(format().decode(bits));
    } else if constexpr (id == DataType::boolean) {
      return *from != std::byte{0};
    } else {
      T value;
      std::memcpy(&value, from, size);
      return value;
    }
  }

  // The value an array holds after `value` was stored in it.
  [[nodiscard]] static T rounded(T value) {
    if constexpr (is_sixteen_bit_float) {
      return static_cast<T>(format().decode(format().encode(value)));
    } else {
      return value;
    }
  }
};

// Calls check(Type<...>{}) for every element type.
template <class Check>
void for_each_type(const Check& check) {
  using enum DataType;
  check(Type<float16, float>{});
  check(Type<bfloat16, float>{});
  check(Type<float32, float>{});
  check(Type<float64, double>{});
  check(Type<int8, std::int8_t>{});
  check(Type<int16, std::int16_t>{});
  check(Type<int32, std::int32_t>{});
  check(Type<int64, std::int64_t>{});
  check(Type<uint8, std::uint8_t>{});
  check(Type<uint16, std::uint16_t>{});
  check(Type<uint32, std::uint32_t>{});
  check(Type<uint64, std::uint64_t>{});
  check(Type<boolean, bool>{});
  check(Type<complex64, std::complex<float>>{});
  check(Type<complex128, std::complex<double>>{});
}

inline constexpr std::array all_ops{ReduceOp::sum,    ReduceOp::average, ReduceOp::min,
                                    ReduceOp::max,    ReduceOp::product, ReduceOp::bit_and,
                                    ReduceOp::bit_or, ReduceOp::bit_xor};

// Equal bits, but any NaN equals any other.
template <class T>
[[nodiscard]] bool same(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(left) || std::isnan(right)) return std::isnan(left) && std::isnan(right);
    return left == right && std::signbit(left) == std::signbit(right);
  } else {
    return left == right;
  }
}
template <class T>
[[nodiscard]] bool same(std::complex<T> left, std::complex<T> right) {
  return same(left.real(), right.real()) && same(left.imag(), right.imag());
}

inline bool combine(ReduceOp op, bool a, bool b) {
  if (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bit_or) return a || b;
  return op == ReduceOp::bit_xor ? a != b : a && b;
}

template <class T>
  requires std::is_integral_v<T>
T combine(ReduceOp op, T a, T b) {
  // Modulo 2^64, which is exact modulo any smaller power of two, too.
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::average: return static_cast<T>(x + y);
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::product: return static_cast<T>(x * y);
    case ReduceOp::bit_and: return static_cast<T>(x & y);
    case ReduceOp::bit_or: return static_cast<T>(x | y);
    case ReduceOp::bit_xor: return static_cast<T>(x ^ y);
  }
  return {};
}

template <class T>
  requires std::is_floating_point_v<T>
T combine(ReduceOp op, T a, T b) {
  const bool any_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case ReduceOp::min: return any_nan ? std::numeric_limits<T>::quiet_NaN() : (a < b ? a : b);
    case ReduceOp::max: return any_nan ? std::numeric_limits<T>::quiet_NaN() : (a > b ? a : b);
    case ReduceOp::product: return a * b;
    default: return a + b;
  }
}

template <class T>
std::complex<T> combine(ReduceOp op, std::complex<T> a, std::complex<T> b) {
  if (op != ReduceOp::product) return {a.real() + b.real(), a.imag() + b.imag()};
  // Volatile prevents fused multiply-add, whatever the compiler flags.
  const volatile T real_real = a.real() * b.real();
  const volatile T imag_imag = a.imag() * b.imag();
  const volatile T real_imag = a.real() * b.imag();
  const volatile T imag_real = a.imag() * b.real();
  return {real_real - imag_imag, real_imag + imag_real};
}

template <class T>
T scaled(T value, double factor) {
  if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    if (factor == 1.0) return value;
    const double product = static_cast<double>(value) * factor;
    if (std::isnan(product)) return 0;
    const double truncated = std::trunc(product);
    if (truncated <= std::ldexp(std::is_signed_v<T> ? -1.0 : 0.0, Limits::digits))
      return Limits::min();
    if (truncated >= std::ldexp(1.0, Limits::digits)) return Limits::max();
    return static_cast<T>(truncated);
  } else if constexpr (std::is_floating_point_v<T>) {
    return factor == 1.0 ? value : value * static_cast<T>(factor);
  } else {
    return {scaled(value.real(), factor), scaled(value.imag(), factor)};
  }
}

// Whether `quotient` is floor(value / ranks) for integers, or the nearest representable number for
// other types.
template <class T>
bool is_quotient(T quotient, T value, int ranks) {
  if constexpr (std::is_same_v<T, bool>) {
    return false;  // booleans have no quotient
  } else if constexpr (std::is_integral_v<T>) {
    const auto remainder = static_cast<std::uint64_t>(value) -
                           static_cast<std::uint64_t>(quotient) * static_cast<std::uint64_t>(ranks);
    const bool same_sign = quotient == 0 || (quotient < 0) == (value < 0);
    return same_sign && remainder < static_cast<std::uint64_t>(ranks);
  } else if constexpr (std::is_floating_point_v<T>) {
    return same(quotient, value / static_cast<T>(ranks));
  } else {
    return is_quotient(quotient.real(), value.real(), ranks) &&
           is_quotient(quotient.imag(), value.imag(), ranks);
  }
}

// Random bits; every other element is a small number or a special value of the type.
template <class Type>
Bytes random_elements(std::int64_t count, std::mt19937& random) {
  Bytes bytes(static_cast<std::size_t>(count) * Type::size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto put = [&](std::size_t at, auto value) {
    std::memcpy(&bytes[at], &value, sizeof(value));
  };
  using T = typename Type::Value;
  using Part =
      std::conditional_t<Type::size == sizeof(std::complex<double>) || std::is_same_v<T, double>,
                         double, float>;
  using Limits = std::numeric_limits<Part>;
  for (std::size_t at = 0; at < bytes.size(); at += 2 * Type::size) {
    const auto small = static_cast<double>(random() % 2001) / 16 - 62.5;
    if constexpr (Type::is_sixteen_bit_float) {
      const auto infinity = static_cast<std::uint16_t>(Type::format().infinity());
      const std::array<std::uint16_t, 6> special{0, 0x8000, infinity, 0x7fff, 1, 0x8001};
      put(at,
          random() % 4 == 0 ? special[random() % special.size()] : Type::format().encode(small));
    } else if constexpr (!std::is_integral_v<T>) {
      const std::array<Part, 6> special{
          Part(0),         -Part(0), Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min(),
          Limits::lowest()};
      for (std::size_t part = 0; part < Type::size; part += sizeof(Part)) {
        put(at + part, random() % 4 == 0 ? special[random() % special.size()] : Part(small));
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      put(at, static_cast<std::uint8_t>(random() % 2));
    } else {
      const std::array special{T(0), T(1), T(-1), std::numeric_limits<T>::min(),
                               std::numeric_limits<T>::max()};
      put(at, special[random() % special.size()]);
    }
  }
  return bytes;
}

}  // namespace rueda::test
