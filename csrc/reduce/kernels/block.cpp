// The int8 codec: blocks of integers with one scale each (reduce/kernels/block_format.h). Every
// step is one correctly rounded operation on normal numbers, so that every CPU gives the same bits,
// even if it flushes subnormal numbers to zero.
#include "reduce/kernels/block_format.h"
#include "reduce/kernels/lanes.h"
#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

namespace {

using Signed = Register<std::int32_t>;
constexpr std::size_t lanes = register_bytes / sizeof(float);
constexpr std::size_t registers_of_block = static_cast<std::size_t>(block_elements) / lanes;

// The bits of finite magnitudes are below this: floats without their signs are ordered like their
// bits.
constexpr std::int32_t infinite = 0x7f800000;
constexpr std::int32_t min_magnitude = 0x03fe0000;   // 127 * 2^-126, so that the scale is normal
constexpr std::uint32_t largest_scale = 0x7c010000;  // 127 times this is finite
template <class T>
[[gnu::always_inline]] inline Register<T> all(T value) {
  return value - Register<T>{};
}

// The bits of the largest magnitude; at least `infinite` if a value is not finite.
[[gnu::always_inline]] inline std::int32_t largest_magnitude(const std::byte* block) {
  Signed largest{};
#pragma GCC unroll 8
  for (std::size_t r = 0; r < registers_of_block; ++r) {
    const Signed magnitude = read_register<Signed>(block + r * register_bytes) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  std::int32_t result = 0;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < lanes; ++i) result = largest[i] > result ? largest[i] : result;
  return result;
}

struct Scale {
  std::uint16_t stored = 0;
  float reciprocal = 0;
};

[[gnu::always_inline]] inline Scale scale_for(std::int32_t magnitude) {
  if (magnitude >= infinite) return {scale_of_not_finite, 0};
  if (magnitude < min_magnitude) return {};
  float largest;
  __builtin_memcpy(&largest, &magnitude, sizeof(largest));
  float scale = largest / 127.0F;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof(bits));
  bits = (bits + 0xffff) & 0xffff0000;  // rounded up to a bfloat16
  if (bits > largest_scale) {
    return {static_cast<std::uint16_t>(largest_scale >> 16), 127.0F / largest};
  }
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  return {static_cast<std::uint16_t>(bits >> 16), 1.0F / scale};
}

[[gnu::always_inline]] inline void quantize_block(std::byte* target, const std::byte* block) {
  const Scale scale = scale_for(largest_magnitude(block));
  __builtin_memcpy(target, &scale.stored, scale_bytes);
  target += scale_bytes;
  if (scale.reciprocal == 0) {
    __builtin_memset(target, 0, static_cast<std::size_t>(block_elements));
    return;
  }
  const Floats factor = all(scale.reciprocal);
#pragma GCC unroll 8
  for (std::size_t r = 0; r < registers_of_block; r += 4) {
    Floats steps[4];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      steps[i] = read_register<Floats>(block + (r + i) * register_bytes) * factor;
    }
    const Bytes bytes = narrow_to_bytes(steps);
    __builtin_memcpy(target + r * lanes, &bytes, sizeof(bytes));
  }
}

// False if the block says that a value was not finite.
template <bool adds>
[[gnu::always_inline]] inline bool dequantize_block(std::byte* target, const std::byte* block) {
  std::uint16_t stored;
  __builtin_memcpy(&stored, block, sizeof(stored));
  const std::uint32_t bits = static_cast<std::uint32_t>(stored) << 16;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  const Floats factor = all(scale);
#pragma GCC unroll 8
  for (std::size_t r = 0; r < registers_of_block; ++r) {
    Floats values = widen_bytes(block + scale_bytes + r * lanes) * factor;
    std::byte* const to = target + r * register_bytes;
    if constexpr (adds) values = read_register<Floats>(to) + values;
    __builtin_memcpy(to, &values, sizeof(values));
  }
  return (stored & 0x7f80) != 0x7f80;
}

constexpr auto whole = static_cast<std::size_t>(block_elements);
constexpr std::size_t float_bytes_of_block = whole * sizeof(float);

// A partial last block goes through copies.
template <bool adds>
bool dequantize_blocks(float* target, const std::byte* source, std::int64_t count) {
  auto* to = reinterpret_cast<std::byte*>(target);
  auto rest = static_cast<std::size_t>(count);
  bool is_finite = true;
  for (; rest >= whole; rest -= whole) {
    is_finite = dequantize_block<adds>(to, source) && is_finite;
    to += float_bytes_of_block;
    source += scale_bytes + whole;
  }
  if (rest == 0) return is_finite;
  alignas(64) std::byte block[scale_bytes + whole] = {};
  alignas(64) std::byte values[float_bytes_of_block] = {};
  __builtin_memcpy(block, source, scale_bytes + rest);
  if constexpr (adds) __builtin_memcpy(values, to, rest * sizeof(float));
  is_finite = dequantize_block<adds>(values, block) && is_finite;
  __builtin_memcpy(to, values, rest * sizeof(float));
  return is_finite;
}

}  // namespace

void quantize_blocks(std::byte* target, const float* source, std::int64_t count) {
  const auto* from = reinterpret_cast<const std::byte*>(source);
  auto rest = static_cast<std::size_t>(count);
  for (; rest >= whole; rest -= whole) {
    quantize_block(target, from);
    from += float_bytes_of_block;
    target += scale_bytes + whole;
  }
  if (rest == 0) return;
  alignas(64) std::byte values[float_bytes_of_block] = {};
  alignas(64) std::byte block[scale_bytes + whole];
  __builtin_memcpy(values, from, rest * sizeof(float));
  quantize_block(block, values);
  __builtin_memcpy(target, block, scale_bytes + rest);
}

bool dequantize(float* target, const std::byte* source, std::int64_t count) {
  return dequantize_blocks<false>(target, source, count);
}

bool add_dequantized(float* target, const std::byte* source, std::int64_t count) {
  return dequantize_blocks<true>(target, source, count);
}

}  // namespace rueda::RUEDA_KERNELS
