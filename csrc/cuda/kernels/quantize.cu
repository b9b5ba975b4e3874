// Packs many tensors as 8-bit codes with a scale for each block of elements, and back.
//
// A thread takes a whole block of elements, so no thread waits for another. It reads them twice:
// the second time they are in the nearest cache.
#include "cuda/kernels/elements.h"

namespace rueda::cuda {

struct QuantizedBlock {
  std::uint64_t begin;  // of its elements, within the tensor
  std::uint64_t index;  // of its scale
  std::uint32_t count;  // less than a whole block at the end
};

// This thread's block of the tile, which has none behind the end of the tensor.
__device__ inline QuantizedBlock block_of_thread(const Extent& extent) {
  const std::uint32_t skipped = threadIdx.x * quantized_block;
  const std::uint32_t left = skipped < extent.count ? extent.count - skipped : 0;
  const std::uint64_t begin = extent.begin + skipped;
  return {begin, begin / quantized_block, left < quantized_block ? left : quantized_block};
}

template <class Type>
__device__ void quantize_block(const QuantizedItem& item, const QuantizedBlock& block,
                               float factor) {
  const auto* values = memory_at<const typename Type::Stored>(item.values) + block.begin;
  float largest = 0;
  bool overflow = false;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    const float value = static_cast<float>(Type::load(values[i])) * factor;
    const float magnitude = value < 0 ? -value : value;
    overflow |= !(value - value == 0);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = overflow ? not_a_number() : largest / 127.0F;
  memory_at<float>(item.scales)[block.index] = scale;
  auto* codes = memory_at<std::int8_t>(item.codes) + block.begin;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    const float value = static_cast<float>(Type::load(values[i])) * factor;
    // Nothing that a scale of 0 (all zeros, or as good as) or NaN could be divided by.
    const float code = scale > 0 ? round_to_even(value / scale) : 0.0F;
    // A subnormal scale is imprecise enough to lead beyond.
    codes[i] = static_cast<std::int8_t>(code > 127.0F ? 127.0F : code < -127.0F ? -127.0F : code);
  }
}

template <class Type>
__device__ void dequantize_block(const QuantizedItem& item, const QuantizedBlock& block,
                                 float factor) {
  using Value = typename Type::Value;
  const float scale = memory_at<const float>(item.scales)[block.index] * factor;
  const auto* codes = memory_at<const std::int8_t>(item.codes) + block.begin;
  auto* values = memory_at<typename Type::Stored>(item.values) + block.begin;
  for (std::uint32_t i = 0; i < block.count; ++i)
    values[i] = Type::store(static_cast<Value>(scale * static_cast<float>(codes[i])));
}

template <bool to_codes, class Items>
__device__ void quantize_tile(const Items& batch) {
  const std::uint32_t tile = blockIdx.x;
  const QuantizedItem item = item_of_tile(batch.item, batch.items, tile);
  const QuantizedBlock block = block_of_thread(extent_of_tile(item, tile, quantized_tile));
  if (block.count == 0) return;
  const auto factor = static_cast<float>(batch.scale);
  with_float(item.element, [&](auto type) {
    if constexpr (to_codes) {
      quantize_block<decltype(type)>(item, block, factor);
    } else {
      dequantize_block<decltype(type)>(item, block, factor);
    }
  });
}

}  // namespace rueda::cuda

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_quantize_small(
        const __grid_constant__ rueda::cuda::SmallBatch<rueda::cuda::QuantizedItem> batch) {
  rueda::cuda::quantize_tile<true>(batch);
}

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_quantize_large(
        const __grid_constant__ rueda::cuda::LargeBatch<rueda::cuda::QuantizedItem> batch) {
  rueda::cuda::quantize_tile<true>(batch);
}

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_dequantize_small(
        const __grid_constant__ rueda::cuda::SmallBatch<rueda::cuda::QuantizedItem> batch) {
  rueda::cuda::quantize_tile<false>(batch);
}

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_dequantize_large(
        const __grid_constant__ rueda::cuda::LargeBatch<rueda::cuda::QuantizedItem> batch) {
  rueda::cuda::quantize_tile<false>(batch);
}
