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
  double scale = 1.0;                   // 1 where that is the same type
};

// In a launch each; without kernels, in a copy for each tensor.
[[nodiscard]] Status pack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                          const Packing& packing, std::byte* buffer);
// Pieces without an output are left out.
[[nodiscard]] Status unpack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
                            const Packing& packing, const std::byte* buffer);

}  // namespace rueda
