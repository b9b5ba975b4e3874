#include "reduce/cast.h"

#include <cassert>
#include <type_traits>

#include "reduce/element.h"
#include "reduce/instruction_set.h"

namespace rueda {

namespace {

// Calls visit(element) for real floating-point types.
template <class Visitor>
void with_floating(DataType dtype, const Visitor& visit) {
  assert(info(dtype).kind == DataKind::floating);
  with_element(dtype, [&]<class Element>(Element element) {
    if constexpr (std::is_floating_point_v<typename Element::Value>) visit(element);
  });
}

template <class To, class From>
void cast_array(std::byte* target, const std::byte* source, std::int64_t count, double factor) {
  using Wide = std::common_type_t<typename To::Value, typename From::Value>;
  for (std::int64_t i = 0; i < count; ++i) {
    const Wide product = static_cast<Wide>(load<From>(source, i)) * static_cast<Wide>(factor);
    store<To>(target, i, static_cast<typename To::Value>(product));
  }
}

}  // namespace

void cast(std::byte* target, DataType to, const std::byte* source, DataType from,
          std::int64_t count, double factor, const KernelTable& kernels) {
  if (from == DataType::float32 && size_of(to) == 2) {
    return kernels.narrow(to, target, source, count, static_cast<float>(factor));
  }
  if (to == DataType::float32 && size_of(from) == 2) {
    return kernels.widen(from, target, source, count, static_cast<float>(factor));
  }
  with_floating(to, [&]<class To>(To) {
    with_floating(from,
                  [&]<class From>(From) { cast_array<To, From>(target, source, count, factor); });
  });
}

void cast(std::byte* target, DataType to, const std::byte* source, DataType from,
          std::int64_t count, double factor) {
  cast(target, to, source, from, count, factor, chosen_kernels());
}

}  // namespace rueda
