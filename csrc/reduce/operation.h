// What each reduction does to two values, and its identity: one functor per operation and one row
// of with_operation().
#pragma once

#include <complex>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "rueda/types.h"

namespace rueda {

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;

template <class T>
concept WrappingInteger = std::integral<T> && !std::same_as<T, bool>;

// Integers are added and multiplied as these types: overflow wraps, and 16-bit factors do not
// become `int`.
template <WrappingInteger T>
using Wrapping =
    std::conditional_t<(sizeof(T) < sizeof(std::uint32_t)), std::uint32_t, std::make_unsigned_t<T>>;

struct Sum {
  static constexpr ReduceOp op = ReduceOp::sum;
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::same_as<T, bool>) {
      return a | b;
    } else if constexpr (WrappingInteger<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
  // Minus zero: plus zero would turn a sum of minus zeros into plus zero.
  template <class T>
  static T identity() {
    if constexpr (is_complex<T>) {
      return {identity<typename T::value_type>(), identity<typename T::value_type>()};
    } else if constexpr (std::floating_point<T>) {
      return T(-0.0);
    } else {
      return T(0);
    }
  }
};

struct Product {
  static constexpr ReduceOp op = ReduceOp::product;
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::same_as<T, bool>) {
      return a & b;
    } else if constexpr (WrappingInteger<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else if constexpr (is_complex<T>) {
      // Like NumPy; std::complex would call a function per element to correct infinities.
      return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
    } else {
      return a * b;
    }
  }
  template <class T>
  static T identity() {
    return T(1);
  }
};

// The comparison with itself finds a NaN in `a`; a NaN in `b` fails the first comparison, so it is
// returned.
struct Min {
  static constexpr ReduceOp op = ReduceOp::min;
  template <class T>
  static T combine(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
  template <class T>
  static T identity() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
};

struct Max {
  static constexpr ReduceOp op = ReduceOp::max;
  template <class T>
  static T combine(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
  template <class T>
  static T identity() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) {
      return -Limits::infinity();
    } else {
      return Limits::lowest();
    }
  }
};

struct BitAnd {
  static constexpr ReduceOp op = ReduceOp::bit_and;
  template <std::integral T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
  template <std::integral T>
  static T identity() {
    return static_cast<T>(-1);
  }
};

struct BitOr {
  static constexpr ReduceOp op = ReduceOp::bit_or;
  template <std::integral T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
  template <std::integral T>
  static T identity() {
    return T(0);
  }
};

struct BitXor {
  static constexpr ReduceOp op = ReduceOp::bit_xor;
  template <std::integral T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
  template <std::integral T>
  static T identity() {
    return T(0);
  }
};

// Calls `visit` with the functor of `op`.
template <class Visitor>
void with_operation(ReduceOp op, Visitor&& visit) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::average: return visit(Sum{});
    case ReduceOp::min: return visit(Min{});
    case ReduceOp::max: return visit(Max{});
    case ReduceOp::product: return visit(Product{});
    case ReduceOp::bit_and: return visit(BitAnd{});
    case ReduceOp::bit_or: return visit(BitOr{});
    case ReduceOp::bit_xor: return visit(BitXor{});
  }
}

}  // namespace rueda
