// Multiplication by a factor and division by a number of ranks.
#include <array>
#include <cassert>
#include <limits>

#include "reduce/combine.h"
#include "reduce/element.h"
#include "reduce/operation.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

[[nodiscard]] bool is_integer(DataType dtype) {
  return info(dtype).kind == DataKind::integer;
}

// Combines one array with nothing; the kernels then only scale and divide it.
void combine_alone(void* data, std::int64_t count, const Combination& combination) {
  auto* const array = static_cast<std::byte*>(data);
  const Combiner combiner(combination);
  combiner(std::array{array}, std::array{static_cast<const std::byte*>(array)}, count,
           Stores::cached);
}

// Truncates towards zero, into range; NaN becomes 0.
template <WrappingInteger T>
T saturate(double value) {
  using Limits = std::numeric_limits<T>;
  constexpr auto lowest = static_cast<double>(Limits::lowest());
  // For 64 bits the bound itself is not a double; the next power of two is, and is too large.
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
    const double product = static_cast<double>(load<Element>(data, i)) * factor;
    store<Element>(data, i, saturate<Value>(product));
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
  for (std::int64_t i = 0; i < count; ++i) {
    store<Element>(data, i, floor_divide(load<Element>(data, i), ranks));
  }
}

// Calls visit(element) for an integer type, and does nothing for others.
template <class Visitor>
void with_integer(DataType dtype, const Visitor& visit) {
  with_element(dtype, [&]<class Element>(Element element) {
    if constexpr (WrappingInteger<typename Element::Value>) visit(element);
  });
}

}  // namespace

void scale(void* data, std::int64_t count, DataType dtype, double factor) {
  if (factor == 1.0 || dtype == DataType::boolean) return;
  if (!is_integer(dtype)) return combine_alone(data, count, {.dtype = dtype, .prescale = factor});
  with_integer(dtype, [&]<class Element>(Element) {
    scale_array<Element>(static_cast<std::byte*>(data), count, factor);
  });
}

void divide(void* data, std::int64_t count, DataType dtype, int ranks) {
  assert(ranks > 0 && is_supported(ReduceOp::average, dtype));
  if (ranks == 1) return;
  if (!is_integer(dtype)) return combine_alone(data, count, {.dtype = dtype, .divisor = ranks});
  with_integer(dtype, [&]<class Element>(Element) {
    divide_array<Element>(static_cast<std::byte*>(data), count, ranks);
  });
}

}  // namespace rueda
