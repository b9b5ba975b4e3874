// Converts between float32 and the 16-bit floats, scaling on the way.
#include <utility>

#include "reduce/kernels/operations.h"
#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

namespace {

constexpr std::size_t floats_of_register = register_bytes / sizeof(float);
// One register of 16-bit floats, two of float32.
constexpr std::size_t block = 2 * floats_of_register;

using Lanes = Values<float, 2>;

// The even places of two registers, then the odd ones.
template <std::size_t... i>
[[gnu::always_inline]] inline Lanes to_pairs(const Lanes& row, std::index_sequence<i...>) {
  return {{__builtin_shufflevector(row.part[0], row.part[1], 2 * i...),
           __builtin_shufflevector(row.part[0], row.part[1], 2 * i + 1 ...)}};
}
template <std::size_t... i>
[[gnu::always_inline]] inline Lanes from_pairs(const Lanes& pairs, std::index_sequence<i...>) {
  constexpr std::size_t n = floats_of_register;
  return {{__builtin_shufflevector(pairs.part[0], pairs.part[1], i / 2 + i % 2 * n...),
           __builtin_shufflevector(pairs.part[0], pairs.part[1], n / 2 + i / 2 + i % 2 * n...)}};
}

[[gnu::always_inline]] inline void scale(Lanes& values, float factor) {
  const Floats all = factor - Floats{};
  for (Floats& part : values.part) part = multiply(part, all);
}

template <class Element>
[[gnu::always_inline]] inline void narrow_block(std::byte* target, const std::byte* source,
                                                float factor) {
  Lanes values{{read_register<Floats>(source), read_register<Floats>(source + register_bytes)}};
  scale(values, factor);
  if constexpr (Element::in_pairs) {
    values = to_pairs(values, std::make_index_sequence<floats_of_register>());
  }
  const Bytes narrow = Element::narrow(values);
  __builtin_memcpy(target, &narrow, sizeof(narrow));
}

template <class Element>
[[gnu::always_inline]] inline void widen_block(std::byte* target, const std::byte* source,
                                               float factor) {
  Lanes values = Element::load(source);
  if constexpr (Element::in_pairs) {
    values = from_pairs(values, std::make_index_sequence<floats_of_register>());
  }
  scale(values, factor);
  __builtin_memcpy(target, values.part, sizeof(values.part));
}

// Block by block; a partial last block goes through copies.
template <std::size_t target_size, std::size_t source_size, class Convert>
[[gnu::always_inline]] inline void convert(std::byte* target, const std::byte* source,
                                           std::int64_t count, const Convert& convert_block) {
  const auto elements = static_cast<std::size_t>(count);
  std::size_t at = 0;
  for (; at + block <= elements; at += block) {
    convert_block(target + at * target_size, source + at * source_size);
  }
  if (at == elements) return;
  alignas(64) std::byte from[block * source_size] = {};
  alignas(64) std::byte to[block * target_size];
  __builtin_memcpy(from, source + at * source_size, (elements - at) * source_size);
  convert_block(to, from);
  __builtin_memcpy(target + at * target_size, to, (elements - at) * target_size);
}

template <class Element>
void narrow_array(std::byte* target, const std::byte* source, std::int64_t count, float factor) {
  convert<2, 4>(target, source, count,
                [=](std::byte* to, const std::byte* from)
                    __attribute__((always_inline)) { narrow_block<Element>(to, from, factor); });
}
template <class Element>
void widen_array(std::byte* target, const std::byte* source, std::int64_t count, float factor) {
  convert<4, 2>(target, source, count,
                [=](std::byte* to, const std::byte* from)
                    __attribute__((always_inline)) { widen_block<Element>(to, from, factor); });
}

}  // namespace

void narrow_floats(DataType to, std::byte* target, const std::byte* source, std::int64_t count,
                   float factor) {
  if (to == DataType::float16) return narrow_array<Float16>(target, source, count, factor);
  narrow_array<BFloat16>(target, source, count, factor);
}

void widen_to_floats(DataType from, std::byte* target, const std::byte* source, std::int64_t count,
                     float factor) {
  if (from == DataType::float16) return widen_array<Float16>(target, source, count, factor);
  widen_array<BFloat16>(target, source, count, factor);
}

}  // namespace rueda::RUEDA_KERNELS
