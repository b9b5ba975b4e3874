// How kernels read and write elements: the stored type and the computed type of each, and several
// elements at a time if alignment allows.
#pragma once

#include <cstdint>

#include "cuda/kernels/batch.h"
#include "target.h"

namespace rueda::cuda {

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static __device__ float load(std::uint16_t stored) { return widen_float16(stored); }
  static __device__ std::uint16_t store(float value) { return narrow_to_float16(value); }
};
struct BFloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static __device__ float load(std::uint16_t stored) { return widen_bfloat16(stored); }
  static __device__ std::uint16_t store(float value) { return narrow_to_bfloat16(value); }
};
struct Float32 {
  using Stored = float;
  using Value = float;
  static __device__ float load(float stored) { return stored; }
  static __device__ float store(float value) { return value; }
};
struct Float64 {
  using Stored = double;
  using Value = double;
  static __device__ double load(double stored) { return stored; }
  static __device__ double store(double value) { return value; }
};

// Calls `visit` with the type of a floating-point element. The branch is uniform within a block.
template <class Visitor>
__device__ void with_float(Element element, const Visitor& visit) {
  switch (element) {
    case Element::float16: return visit(Float16{});
    case Element::bfloat16: return visit(BFloat16{});
    case Element::float32: return visit(Float32{});
    case Element::float64: return visit(Float64{});
    case Element::bytes: return;
  }
}

// The common type for computing with two types: float32 unless one of them is wider.
template <class A, class B>
struct Wider {
  using Type = A;
};
template <>
struct Wider<float, double> {
  using Type = double;
};

// Elements moved together, in accesses of up to 16 bytes.
template <class T, std::uint32_t count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) Pack {
  T element[count];
};

__device__ inline bool is_aligned(std::uint64_t address, std::uint32_t bytes) {
  return (address & (bytes - 1)) == 0;
}

// The item that `tile` belongs to: the last one that begins at or before it.
__device__ inline const CopyItem& item_of_tile(const CopyItem* items, std::uint32_t count,
                                               std::uint32_t tile) {
  std::uint32_t first = 0;
  std::uint32_t last = count - 1;
  while (first < last) {
    const std::uint32_t middle = (first + last + 1) / 2;
    if (items[middle].first_tile <= tile) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return items[first];
}

// Where `tile` begins in its item, and how many elements it has.
struct Extent {
  std::uint64_t begin;
  std::uint32_t count;
};
__device__ inline Extent extent_of_tile(const CopyItem& item, std::uint32_t tile,
                                        std::uint32_t tile_elements) {
  const std::uint64_t begin = static_cast<std::uint64_t>(tile - item.first_tile) * tile_elements;
  const std::uint64_t left = item.elements - begin;
  return {begin, static_cast<std::uint32_t>(left < tile_elements ? left : tile_elements)};
}

// Calls the visitor for each of this thread's indices below `count`. Neighbouring threads get
// neighbouring indices.
template <class Visitor>
__device__ void for_each_index(std::uint32_t count, const Visitor& visit) {
  for (std::uint32_t index = threadIdx.x; index < count; index += blockDim.x) visit(index);
}

// The same for `store(index, load(index))`, `depth` loads at a time: since the compiler must assume
// that source and destination overlap, it would not move a load before a store.
template <std::uint32_t depth, class Load, class Store>
__device__ void move_indices(std::uint32_t count, const Load& load, const Store& store) {
  for (std::uint32_t first = threadIdx.x; first < count; first += depth * blockDim.x) {
    decltype(load(0U)) loaded[depth];
#pragma unroll
    for (std::uint32_t i = 0; i < depth; ++i) {
      const std::uint32_t index = first + i * blockDim.x;
      if (index < count) loaded[i] = load(index);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < depth; ++i) {
      const std::uint32_t index = first + i * blockDim.x;
      if (index < count) store(index, loaded[i]);
    }
  }
}

}  // namespace rueda::cuda
