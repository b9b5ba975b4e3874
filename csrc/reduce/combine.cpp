#include "reduce/combine.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "reduce/element.h"
#include "reduce/instruction_set.h"
#include "reduce/operation.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

bool scales(const Combination& combination) {
  return combination.prescale != 1.0 || combination.divisor != 1 || combination.postscale != 1.0;
}

template <class Element>
void multiply_complex(std::byte* __restrict target, const std::byte* __restrict source,
                      std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    store<Element>(target, i, Product::combine(load<Element>(target, i), load<Element>(source, i)));
  }
}

// target[i] = target[i] op source[i], no overlap.
void combine_two(const Combination& combination, std::byte* target, const std::byte* source,
                 std::int64_t count) {
  with_element(combination.dtype, [&]<class Element>(Element) {
    if constexpr (is_complex<typename Element::Value>) {
      if (combination.op == ReduceOp::product) multiply_complex<Element>(target, source, count);
    }
  });
  const bool is_multiplied =
      info(combination.dtype).kind == DataKind::complex && combination.op == ReduceOp::product;
  if (is_multiplied) return;
  const Combiner plain({.dtype = combination.dtype, .op = combination.op});
  plain(std::array{target}, std::array<const std::byte*, 2>{target, source}, count, Stores::cached);
}

// For what no kernel does in one pass (scaled integers, products of complex numbers): step by step,
// in pieces that stay in the first-level cache.
void combine_in_steps(const Combination& combination, const Arrays& arrays, std::int64_t count,
                      Stores stores) {
  constexpr std::size_t piece_bytes = 4096;
  alignas(64) std::array<std::byte, piece_bytes> result;
  alignas(64) std::array<std::byte, piece_bytes> input;
  const DataType dtype = combination.dtype;
  const std::size_t size = size_of(dtype);
  const std::size_t end = static_cast<std::size_t>(count) * size;
  for (std::size_t at = 0; at < end; at += piece_bytes) {
    const std::size_t bytes = std::min(end - at, piece_bytes);
    const auto elements = static_cast<std::int64_t>(bytes / size);
    for (std::size_t k = 0; k < arrays.input_count; ++k) {
      std::byte* copy = k == 0 ? result.data() : input.data();
      std::memcpy(copy, arrays.inputs[k] + at, bytes);
      scale(copy, elements, dtype, combination.prescale);
      if (k > 0) combine_two(combination, result.data(), input.data(), elements);
    }
    if (combination.divisor != 1) divide(result.data(), elements, dtype, combination.divisor);
    scale(result.data(), elements, dtype, combination.postscale);
    for (std::size_t t = 0; t < arrays.target_count; ++t) {
      copy_bytes(arrays.targets[t] + at, result.data(), bytes, stores);
    }
  }
}

}  // namespace

Combiner::Combiner(const Combination& combination) : Combiner(combination, chosen_kernels()) {}

Combiner::Combiner(const Combination& combination, const KernelTable& kernels)
    : combination_(combination) {
  assert(is_supported(combination.op, combination.dtype));
  const KernelRow& row = *kernels.rows[static_cast<std::size_t>(combination.op)];
  const KernelEntry& entry = row[combination.dtype];
  const bool is_scaled = scales(combination) && combination.dtype != DataType::boolean;
  run_ = is_scaled ? entry.scaled : entry.plain;
  parts_ = entry.parts;
  if (run_ == nullptr) {
    run_ = &combine_in_steps;
    parts_ = 1;
  }
}

void Combiner::fill(std::span<std::byte* const> targets, std::int64_t count) const {
  for (std::byte* const target : targets) {
    fill_identity(target, count, combination_.dtype, combination_.op);
  }
}

void copy_bytes(std::byte* target, const std::byte* input, std::size_t bytes, Stores stores) {
  if (stores == Stores::streaming) {
    chosen_kernels().stream(target, input, bytes);
  } else if (bytes > 0) {
    std::memcpy(target, input, bytes);
  }
}

std::string_view instruction_set() {
  return chosen_kernels().name;
}

}  // namespace rueda
