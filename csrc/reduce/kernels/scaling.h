// What is done to the inputs before, and to the result after they are combined.
#pragma once

#include "reduce/combine.h"
#include "reduce/kernels/lanes.h"
#include "reduce/kernels/operations.h"

namespace rueda::RUEDA_KERNELS {

struct Unscaled {
  [[gnu::always_inline]] explicit Unscaled(const Combination&) {}
  template <class Lanes>
  [[gnu::always_inline]] void before(Lanes&) const {}
  template <class Lanes>
  [[gnu::always_inline]] void after(Lanes&) const {}
};

// Each step rounds on its own, as scale() and divide() do. Multiplying by 1 changes nothing.
template <class Lane>
class Scaled {
 public:
  [[gnu::always_inline]] explicit Scaled(const Combination& combination)
      : prescale_(static_cast<Lane>(combination.prescale)),
        divisor_(static_cast<Lane>(combination.divisor)),
        reciprocal_(1 / divisor_),
        postscale_(static_cast<Lane>(combination.postscale)),
        has_exact_reciprocal_((combination.divisor & (combination.divisor - 1)) == 0) {}

  template <class Lanes>
  [[gnu::always_inline]] void before(Lanes& values) const {
    for (int i = 0; i < Lanes::size; ++i) values.part[i] = multiply(values.part[i], all(prescale_));
  }
  template <class Lanes>
  [[gnu::always_inline]] void after(Lanes& values) const {
    for (int i = 0; i < Lanes::size; ++i) {
      const auto quotient = has_exact_reciprocal_ ? multiply(values.part[i], all(reciprocal_))
                                                  : values.part[i] / divisor_;
      values.part[i] = multiply(quotient, all(postscale_));
    }
  }

 private:
  [[gnu::always_inline]] static Register<Lane> all(Lane value) { return value - Register<Lane>{}; }

  Lane prescale_;
  Lane divisor_;
  Lane reciprocal_;
  Lane postscale_;
  // For powers of two: the product then equals the quotient to the last bit, and is faster.
  bool has_exact_reciprocal_;
};

}  // namespace rueda::RUEDA_KERNELS
