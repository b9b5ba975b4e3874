#include "reduce/reduce.h"

#include <array>
#include <cassert>

#include "reduce/combine.h"
#include "reduce/element.h"
#include "reduce/operation.h"

namespace rueda {

namespace {

template <class Element, class Operation>
void fill_array(std::byte* data, std::int64_t count) {
  const auto identity = Operation::template identity<typename Element::Value>();
  for (std::int64_t i = 0; i < count; ++i) store<Element>(data, i, identity);
}

// Calls visit(element, operation), compiled for the supported combinations only.
template <class Visitor>
void with_kernel(DataType dtype, ReduceOp op, const Visitor& visit) {
  assert(is_supported(op, dtype));
  with_element(dtype, [&]<class Element>(Element element) {
    with_operation(op, [&]<class Operation>(Operation operation) {
      if constexpr (is_supported(Operation::op, Element::dtype)) visit(element, operation);
    });
  });
}

}  // namespace

void reduce(void* target, const void* source, std::int64_t count, DataType dtype, ReduceOp op) {
  auto* const result = static_cast<std::byte*>(target);
  const Combiner combiner({.dtype = dtype, .op = op});
  combiner(std::array{result},
           std::array{static_cast<const std::byte*>(result), static_cast<const std::byte*>(source)},
           count, Stores::cached);
}

void fill_identity(void* data, std::int64_t count, DataType dtype, ReduceOp op) {
  with_kernel(dtype, op, [&]<class Element, class Operation>(Element, Operation) {
    fill_array<Element, Operation>(static_cast<std::byte*>(data), count);
  });
}

}  // namespace rueda
