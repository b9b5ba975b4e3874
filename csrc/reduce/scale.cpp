// Multiplication by a factor and division by a number of ranks.
#include <cassert>
#include <cmath>
#include <limits>

#include "reduce/element.h"
#include "reduce/operation.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

// The precision in which a floating-point or complex value is multiplied and divided.
template <class T>
struct Precision {
  using type = T;
};
template <class T>
struct Precision<std::complex<T>> {
  using type = T;
};

// Truncates towards zero, into range; NaN becomes 0.
template <WrappingInteger T>
T saturate(double value) {
  using Limits = std::numeric_limits<T>;
  constexpr auto lowest = static_cast<double>(Limits::lowest());
  // The bound itself is no double for 64 bits: the next power of two is, and is already too large.
  constexpr double beyond = 2.0 * static_cast<double>(Limits::max() / 2 + 1);
  const bool fits = (value > lowest) & (value < beyond);
  const T inside = static_cast<T>(fits ? value : 0.0);
  const T above = value >= beyond ? Limits::max() : inside;
  return value <= lowest ? Limits::lowest() : above;
}

template <class Element>
void scale_array(std::byte* data, std::int64_t count, double factor) {
  using Value = typename Element::Value;
  for (std::int64_t i = 0; i < count; ++i) {
    const Value value = load<Element>(data, i);
    if constexpr (WrappingInteger<Value>) {
      store<Element>(data, i, saturate<Value>(static_cast<double>(value) * factor));
    } else {
      store<Element>(data, i, value * static_cast<typename Precision<Value>::type>(factor));
    }
  }
}

template <WrappingInteger T>
T floor_divide(T value, int ranks) {
  using Wide = std::common_type_t<T, int>;  // uint32 and larger stay, smaller ones become int
  const Wide divisor = static_cast<Wide>(ranks);
  const Wide quotient = static_cast<Wide>(value) / divisor;
  return static_cast<T>(quotient - (static_cast<Wide>(value) % divisor < 0 ? 1 : 0));
}

template <class Element>
void divide_array(std::byte* data, std::int64_t count, int ranks) {
  using Value = typename Element::Value;
  for (std::int64_t i = 0; i < count; ++i) {
    const Value value = load<Element>(data, i);
    if constexpr (WrappingInteger<Value>) {
      store<Element>(data, i, floor_divide(value, ranks));
    } else {
      store<Element>(data, i, value / static_cast<typename Precision<Value>::type>(ranks));
    }
  }
}

}  // namespace

void scale(void* data, std::int64_t count, DataType dtype, double factor) {
  if (factor == 1.0) return;
  with_element(dtype, [&]<class Element>(Element) {
    if constexpr (Element::dtype != DataType::boolean) {
      scale_array<Element>(static_cast<std::byte*>(data), count, factor);
    }
  });
}

void divide(void* data, std::int64_t count, DataType dtype, int ranks) {
  assert(ranks > 0 && is_supported(ReduceOp::average, dtype));
  if (ranks == 1) return;
  with_element(dtype, [&]<class Element>(Element) {
    if constexpr (is_supported(ReduceOp::average, Element::dtype)) {
      divide_array<Element>(static_cast<std::byte*>(data), count, ranks);
    }
  });
}

}  // namespace rueda
