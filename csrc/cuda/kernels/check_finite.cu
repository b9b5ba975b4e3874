// Tells whether any element of many tensors is infinite or not a number: one launch, one flag.
#include "cuda/kernels/elements.h"

namespace rueda::cuda {

template <class Type, std::uint32_t width>
__device__ bool has_overflow(std::uint64_t from, std::uint32_t packs) {
  const auto* source = memory_at<const Pack<typename Type::Stored, width>>(from);
  bool found = false;
  for_each_index(packs, [&](std::uint32_t i) {
    const auto taken = source[i];
#pragma unroll
    for (std::uint32_t lane = 0; lane < width; ++lane) {
      const auto value = Type::load(taken.element[lane]);
      found |= !(value - value == 0);  // inf - inf and nan - nan are nan
    }
  });
  return found;
}

template <class Type>
__device__ bool tile_has_overflow(std::uint64_t from, std::uint32_t count) {
  constexpr std::uint32_t width = 16 / sizeof(typename Type::Stored);
  const std::uint32_t packs = is_aligned(from, 16) ? count / width : 0;
  const std::uint32_t done = packs * width;
  const bool found = has_overflow<Type, width>(from, packs);
  return has_overflow<Type, 1>(from + done * sizeof(typename Type::Stored), count - done) || found;
}

template <class Items>
__device__ void check_tile(const Items& batch) {
  const std::uint32_t tile = blockIdx.x;
  const CopyItem item = item_of_tile(batch.item, batch.items, tile);
  const Extent extent = extent_of_tile(item, tile, elements_per_tile(item.from, item.to));
  const std::uint64_t from = item.source + extent.begin * size_of(item.from);
  with_float(item.from, [&](auto type) {
    // Whoever finds one writes the same: no thread needs to know of another.
    if (tile_has_overflow<decltype(type)>(from, extent.count)) *memory_at<float>(batch.flag) = 1.0F;
  });
}

}  // namespace rueda::cuda

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_check_finite_small(
        const __grid_constant__ rueda::cuda::SmallBatch<rueda::cuda::CopyItem> batch) {
  rueda::cuda::check_tile(batch);
}

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_check_finite_large(
        const __grid_constant__ rueda::cuda::LargeBatch<rueda::cuda::CopyItem> batch) {
  rueda::cuda::check_tile(batch);
}
