// The kernels of each instruction set: one row per operation, one entry per element type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/combine.h"

namespace rueda {

using Kernel = void (*)(const Combination&, const Arrays&, std::int64_t count, Stores);

struct KernelEntry {
  Kernel plain = nullptr;   // combines; null if there is none
  Kernel scaled = nullptr;  // scales, combines, divides, scales; null if there is none
  int parts = 1;            // the kernel's elements per element: 2 for complex numbers
};

// Indexed by the value of the DataType.
struct KernelRow {
  KernelEntry entries[data_types.size()];

  constexpr KernelEntry& operator[](DataType dtype) {
    return entries[static_cast<std::size_t>(dtype)];
  }
  constexpr const KernelEntry& operator[](DataType dtype) const {
    return entries[static_cast<std::size_t>(dtype)];
  }
};

struct KernelTable {
  const char* name;
  const KernelRow* rows[reduce_op_names.size()];  // indexed by the value of the ReduceOp
  void (*stream)(std::byte* target, const std::byte* input, std::size_t bytes);
  // From float32 to a 16-bit type and back, each number multiplied by `factor` as float32.
  void (*narrow)(DataType to, std::byte* target, const std::byte* source, std::int64_t count,
                 float factor);
  void (*widen)(DataType from, std::byte* target, const std::byte* source, std::int64_t count,
                float factor);
  // The int8 codec (reduce/kernels/block_format.h). The latter two return false if the blocks say
  // that a value was not finite.
  void (*quantize)(std::byte* target, const float* source, std::int64_t count);
  bool (*dequantize)(float* target, const std::byte* source, std::int64_t count);
  bool (*add_dequantized)(float* target, const std::byte* source, std::int64_t count);
};

// Each is linked in if CMake says so (csrc/cmake/rueda_instruction_sets.cmake).
namespace baseline {
extern const KernelTable kernels;
}
namespace avx2 {
extern const KernelTable kernels;
}
namespace avx512 {
extern const KernelTable kernels;
}
namespace neon {
extern const KernelTable kernels;
}

}  // namespace rueda
