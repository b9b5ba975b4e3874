// What the host passes to a kernel: one item per tensor, and where each item's work begins in the
// grid. Compiled for both host and GPU.
//
// A launch is cut into tiles of about equal size, one per block, so that a batch of 64 MiB tensors
// and scalars loads all multiprocessors evenly. A block finds its item by bisection.
#pragma once

#include <cstdint>

namespace rueda::cuda {

// Element types that kernels compute with. Copies without conversion work on bytes.
enum class Element : std::uint8_t { bytes, float16, bfloat16, float32, float64 };

constexpr std::uint32_t size_of(Element element) {
  switch (element) {
    case Element::bytes: return 1;
    case Element::float16:
    case Element::bfloat16: return 2;
    case Element::float32: return 4;
    case Element::float64: return 8;
  }
  return 1;
}

// GPU addresses. `source` is null for zeros.
struct CopyItem {
  std::uint64_t source;
  std::uint64_t destination;
  std::uint64_t elements;
  std::uint32_t first_tile;  // total tiles of the preceding items
  Element from;
  Element to;
};

// The items are launch parameters, so a captured graph replays them unchanged, and no memory must
// be kept until the kernel has run. A launch takes up to 32,764 bytes.
inline constexpr std::uint32_t max_items = 32000 / sizeof(CopyItem);
// Most batches are smaller, and every launch copies all of its parameters.
inline constexpr std::uint32_t few_items = 2048 / sizeof(CopyItem);

template <std::uint32_t capacity>
struct Batch {
  std::uint32_t items;
  double scale;  // multiplies every element
  CopyItem item[capacity];
};

using SmallBatch = Batch<few_items>;
using LargeBatch = Batch<max_items>;

// Work of one thread block.
inline constexpr std::uint32_t threads_per_block = 256;
inline constexpr std::uint32_t tile_bytes = 16384;

constexpr std::uint32_t elements_per_tile(Element from, Element to) {
  const std::uint32_t from_size = size_of(from);
  const std::uint32_t to_size = size_of(to);
  return tile_bytes / (from_size > to_size ? from_size : to_size);
}

}  // namespace rueda::cuda
