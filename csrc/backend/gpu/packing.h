// How the tensors of a batch come into one piece of a GPU's memory, and out of it again.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"

namespace rueda {

[[nodiscard]] inline std::size_t bytes_of(std::int64_t count, DataType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

// In which type the elements of a batch lie side by side, and what multiplies them on the way.
struct Packing {
  DataType dtype = DataType::float32;   // of the tensors
  DataType packed = DataType::float32;  // another one only where all ranks have the kernels
  double scale = 1.0;                   // likewise, another than 1
};

// Bytes from one tensor to the next: each begins where a vector of 16 bytes may, so that one of odd
// size costs the later ones nothing.
[[nodiscard]] inline std::size_t padded_bytes_of(std::int64_t count, DataType packed) {
  constexpr std::size_t alignment = 16;
  return (bytes_of(count, packed) + alignment - 1) / alignment * alignment;
}

// In a launch each; without kernels, in a copy for each tensor.
[[nodiscard]] Status pack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                          const Packing& packing, std::byte* buffer);
// Pieces without an output are left out.
[[nodiscard]] Status unpack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                            const Packing& packing, const std::byte* buffer);

// Multiplies one tensor, from `input` to `output`, which may be the same memory; nothing where the
// factor is 1. Only where all ranks have the kernels.
[[nodiscard]] Status scale(GpuLane& gpu, const Lane& lane, const std::byte* input,
                           std::byte* output, std::int64_t count, DataType dtype, double factor);

}  // namespace rueda
