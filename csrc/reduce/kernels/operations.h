// What each reduction does to two registers. Agrees with reduce/operation.h, which does it to two
// values.
#pragma once

#include "registers.h"

namespace rueda::RUEDA_KERNELS {

struct Sum {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a + b;
  }
};

struct Product {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a * b;
  }
};

// A NaN in `a` is found by comparing it with itself; one in `b` fails the first comparison.
struct Min {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    const V smaller = a < b ? a : b;
    return a == a ? smaller : a;
  }
};

struct Max {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    const V larger = a > b ? a : b;
    return a == a ? larger : a;
  }
};

struct BitAnd {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a & b;
  }
};

struct BitOr {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a | b;
  }
};

struct BitXor {
  template <class V>
  [[gnu::always_inline]] static V combine(V a, V b) {
    return a ^ b;
  }
};

}  // namespace rueda::RUEDA_KERNELS
