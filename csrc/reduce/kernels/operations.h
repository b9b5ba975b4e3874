// What each reduction does to two registers. Agrees with reduce/operation.h, which does it to two
// values. Frequent operations get more loops of their own (reduce/kernels/loops.h).
#pragma once

#include "registers.h"

namespace rueda::RUEDA_KERNELS {

// For integers; registers.h has the versions for floating-point numbers.
template <class V>
[[gnu::always_inline]] inline V add(V a, V b) {
  return a + b;
}
template <class V>
[[gnu::always_inline]] inline V multiply(V a, V b) {
  return a * b;
}

struct Sum {
  static constexpr bool is_frequent = true;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return add(a, b);
  }
};

struct Product {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return multiply(a, b);
  }
};

// A NaN in `a` is found by comparing it with itself; one in `b` fails the first comparison.
struct Min {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    const V smaller = a < b ? a : b;
    return a == a ? smaller : a;
  }
};

struct Max {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    const V larger = a > b ? a : b;
    return a == a ? larger : a;
  }
};

struct BitAnd {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a & b;
  }
};

struct BitOr {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a | b;
  }
};

struct BitXor {
  static constexpr bool is_frequent = false;
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a ^ b;
  }
};

}  // namespace rueda::RUEDA_KERNELS
