// Rows of the table of kernels.
#pragma once

#include "reduce/kernels/kernel_table.h"
#include "reduce/kernels/loops.h"

namespace rueda::RUEDA_KERNELS {

extern const KernelRow sum_kernels;
extern const KernelRow product_kernels;
extern const KernelRow min_kernels;
extern const KernelRow max_kernels;
extern const KernelRow bit_and_kernels;
extern const KernelRow bit_or_kernels;
extern const KernelRow bit_xor_kernels;
void stream_bytes(std::byte* target, const std::byte* input, std::size_t bytes);
void narrow_floats(DataType to, std::byte* target, const std::byte* source, std::int64_t count,
                   float factor);
void widen_to_floats(DataType from, std::byte* target, const std::byte* source, std::int64_t count,
                     float factor);
void quantize_blocks(std::byte* target, const float* source, std::int64_t count);
bool dequantize(float* target, const std::byte* source, std::int64_t count);
bool add_dequantized(float* target, const std::byte* source, std::int64_t count);

// Combinations that are not scaled in one pass.
template <class Element, class Operation>
[[nodiscard]] constexpr KernelEntry plain(int parts = 1) {
  return {&Loops<Element, Operation, Unscaled>::run, nullptr, parts};
}

template <class Element, class Operation>
[[nodiscard]] constexpr KernelEntry scalable(int parts = 1) {
  using Lane = typename Element::Lanes::Lane;
  return {&Loops<Element, Operation, Unscaled>::run, &Loops<Element, Operation, Scaled<Lane>>::run,
          parts};
}

// 16-bit floats keep their precision from step to step only in one pass. For other types, one pass
// is merely quicker, which pays off for frequent operations.
template <class Operation>
constexpr void add_floating(KernelRow& row) {
  row[DataType::float16] = scalable<Float16, Operation>();
  row[DataType::bfloat16] = scalable<BFloat16, Operation>();
  if constexpr (Operation::is_frequent) {
    row[DataType::float32] = scalable<Native<float>, Operation>();
    row[DataType::float64] = scalable<Native<double>, Operation>();
  } else {
    row[DataType::float32] = plain<Native<float>, Operation>();
    row[DataType::float64] = plain<Native<double>, Operation>();
  }
}

// Modulo a power of two, where the sign makes no difference.
template <class Operation>
constexpr void add_wrapping(KernelRow& row) {
  row[DataType::int8] = row[DataType::uint8] = plain<Native<std::uint8_t>, Operation>();
  row[DataType::int16] = row[DataType::uint16] = plain<Native<std::uint16_t>, Operation>();
  row[DataType::int32] = row[DataType::uint32] = plain<Native<std::uint32_t>, Operation>();
  row[DataType::int64] = row[DataType::uint64] = plain<Native<std::uint64_t>, Operation>();
}

template <class Operation>
constexpr void add_ordered(KernelRow& row) {
  row[DataType::int8] = plain<Native<std::int8_t>, Operation>();
  row[DataType::int16] = plain<Native<std::int16_t>, Operation>();
  row[DataType::int32] = plain<Native<std::int32_t>, Operation>();
  row[DataType::int64] = plain<Native<std::int64_t>, Operation>();
  row[DataType::uint8] = plain<Native<std::uint8_t>, Operation>();
  row[DataType::uint16] = plain<Native<std::uint16_t>, Operation>();
  row[DataType::uint32] = plain<Native<std::uint32_t>, Operation>();
  row[DataType::uint64] = plain<Native<std::uint64_t>, Operation>();
}

// Bit by bit, so that integers of any size are treated as bytes.
template <class Operation>
[[nodiscard]] constexpr KernelRow bitwise() {
  KernelRow row;
  for (const DataTypeInfo& type : data_types) {
    if (type.kind == DataKind::integer) {
      row[type.id] = plain<Native<std::uint8_t>, Operation>(static_cast<int>(type.size));
    }
  }
  row[DataType::boolean] = plain<Boolean, Operation>();
  return row;
}

}  // namespace rueda::RUEDA_KERNELS
