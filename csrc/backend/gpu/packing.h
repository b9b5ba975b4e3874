// Moves a batch's tensors into one contiguous piece of GPU memory, and out again.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"

namespace rueda {

[[nodiscard]] inline std::size_t bytes_of(std::int64_t count, DataType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

// The type in which a batch's elements are packed, and the factor applied on the way.
struct Packing {
  DataType dtype = DataType::float32;   // of the tensors
  DataType packed = DataType::float32;  // differs only if all ranks have kernels
  double scale = 1.0;                   // likewise, other than 1
};

// Bytes from one tensor to the next. Each starts on a 16-byte boundary, so that a tensor of odd
// size does not slow down vector access to later ones.
[[nodiscard]] inline std::size_t padded_bytes_of(std::int64_t count, DataType packed) {
  constexpr std::size_t alignment = 16;
  return (bytes_of(count, packed) + alignment - 1) / alignment * alignment;
}

// One launch; without kernels, one copy per tensor.
[[nodiscard]] Status pack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                          const Packing& packing, std::byte* buffer);
// Skips pieces without an output.
[[nodiscard]] Status unpack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                            const Packing& packing, const std::byte* buffer);

// Multiplies one tensor from `input` to `output`, which may be the same memory. Does nothing if the
// factor is 1. Requires kernels on all ranks.
[[nodiscard]] Status scale(GpuLane& gpu, const Lane& lane, const std::byte* input,
                           std::byte* output, std::int64_t count, DataType dtype, double factor);

}  // namespace rueda
