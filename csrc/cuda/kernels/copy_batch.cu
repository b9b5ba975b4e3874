// Packs, unpacks, converts and scales many tensors in one launch.
#include "cuda/kernels/elements.h"

namespace rueda::cuda {

// --- Without conversion: bytes
// ---------------------------------------------------------------------

// Uses the widest accesses for which both sides are equally aligned; the ends go byte by byte.
template <class Word>
__device__ void copy_words(std::uint64_t to, std::uint64_t from, std::uint32_t bytes) {
  constexpr std::uint32_t size = sizeof(Word);
  const auto misaligned = static_cast<std::uint32_t>(to & (size - 1));
  std::uint32_t head = misaligned == 0 ? 0 : size - misaligned;
  if (head > bytes) head = bytes;
  const std::uint32_t words = (bytes - head) / size;
  const std::uint32_t tail = head + words * size;
  const auto* source_bytes = memory_at<const std::uint8_t>(from);
  auto* destination_bytes = memory_at<std::uint8_t>(to);
  for_each_index(head, [&](std::uint32_t i) { destination_bytes[i] = source_bytes[i]; });
  for_each_index(bytes - tail,
                 [&](std::uint32_t i) { destination_bytes[tail + i] = source_bytes[tail + i]; });
  const auto* source = reinterpret_cast<const Word*>(source_bytes + head);
  auto* destination = reinterpret_cast<Word*>(destination_bytes + head);
  move_indices<4>(
      words, [&](std::uint32_t i) { return source[i]; },
      [&](std::uint32_t i, const Word& word) { destination[i] = word; });
}

__device__ inline void copy_bytes(std::uint64_t to, std::uint64_t from, std::uint32_t bytes) {
  const std::uint64_t apart = to ^ from;
  if (is_aligned(apart, 16)) return copy_words<Pack<std::uint32_t, 4>>(to, from, bytes);
  if (is_aligned(apart, 8)) return copy_words<std::uint64_t>(to, from, bytes);
  if (is_aligned(apart, 4)) return copy_words<std::uint32_t>(to, from, bytes);
  if (is_aligned(apart, 2)) return copy_words<std::uint16_t>(to, from, bytes);
  copy_words<std::uint8_t>(to, from, bytes);
}

__device__ inline void zero_bytes(std::uint64_t to, std::uint32_t bytes) {
  auto* destination = memory_at<std::uint8_t>(to);
  for_each_index(bytes, [&](std::uint32_t i) { destination[i] = 0; });
}

// --- With conversion
// ----------------------------------------------------------------------------------

template <class From, class To, std::uint32_t width>
__device__ void convert_packs(std::uint64_t to, std::uint64_t from, std::uint32_t packs,
                              double scale) {
  using Computed = typename Wider<typename From::Value, typename To::Value>::Type;
  using Source = Pack<typename From::Stored, width>;
  using Destination = Pack<typename To::Stored, width>;
  const auto factor = static_cast<Computed>(scale);
  const auto* source = memory_at<const Source>(from);
  auto* destination = memory_at<Destination>(to);
  move_indices<4>(
      packs, [&](std::uint32_t i) { return source[i]; },
      [&](std::uint32_t i, const Source& taken) {
        Destination made;
#pragma unroll
        for (std::uint32_t lane = 0; lane < width; ++lane) {
          const Computed value = static_cast<Computed>(From::load(taken.element[lane])) * factor;
          made.element[lane] = To::store(static_cast<typename To::Value>(value));
        }
        destination[i] = made;
      });
}

template <class From, class To, std::uint32_t width>
__device__ bool packs_are_aligned(std::uint64_t to, std::uint64_t from) {
  return is_aligned(from, alignof(Pack<typename From::Stored, width>)) &&
         is_aligned(to, alignof(Pack<typename To::Stored, width>));
}

// Moves 16 bytes of the wider type at a time, or as much as both sides' alignment allows.
// Neighbouring threads access neighbouring elements on both sides.
template <class From, class To>
__device__ void convert(std::uint64_t to, std::uint64_t from, std::uint32_t count, double scale) {
  constexpr std::uint32_t from_size = sizeof(typename From::Stored);
  constexpr std::uint32_t to_size = sizeof(typename To::Stored);
  constexpr std::uint32_t widest = 16 / (from_size > to_size ? from_size : to_size);
  std::uint32_t done = 0;
  if (packs_are_aligned<From, To, widest>(to, from)) {
    convert_packs<From, To, widest>(to, from, count / widest, scale);
    done = count / widest * widest;
  } else if (packs_are_aligned<From, To, 2>(to, from)) {
    convert_packs<From, To, 2>(to, from, count / 2, scale);
    done = count / 2 * 2;
  }
  if (done == count) return;
  convert_packs<From, To, 1>(to + done * to_size, from + done * from_size, count - done, scale);
}

// --- One tile of one tensor for each block
// ---------------------------------------------------------------

template <class Items>
__device__ void copy_tile(const Items& batch) {
  const std::uint32_t tile = blockIdx.x;
  const CopyItem item = item_of_tile(batch.item, batch.items, tile);
  const Extent extent = extent_of_tile(item, tile, elements_per_tile(item.from, item.to));
  const std::uint64_t to = item.destination + extent.begin * size_of(item.to);
  if (item.source == 0) return zero_bytes(to, extent.count * size_of(item.to));
  const std::uint64_t from = item.source + extent.begin * size_of(item.from);
  if (item.from == item.to && batch.scale == 1.0)
    return copy_bytes(to, from, extent.count * size_of(item.to));
  with_float(item.from, [&](auto source) {
    with_float(item.to, [&](auto destination) {
      convert<decltype(source), decltype(destination)>(to, from, extent.count, batch.scale);
    });
  });
}

}  // namespace rueda::cuda

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_copy_small(const __grid_constant__ rueda::cuda::SmallBatch batch) {
  rueda::cuda::copy_tile(batch);
}

extern "C" __global__ void __launch_bounds__(rueda::cuda::threads_per_block, 4)
    rueda_copy_large(const __grid_constant__ rueda::cuda::LargeBatch batch) {
  rueda::cuda::copy_tile(batch);
}
