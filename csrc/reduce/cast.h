// Converts floating-point numbers from one type to another while copying them: what packing does if
// elements travel as a narrower type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rueda/types.h"

namespace rueda {

struct KernelTable;

// target[i] = source[i] * factor, between two of float16, bfloat16, float32 and float64. Multiplies
// in the wider of the two types, with the factor rounded to it, then rounds to nearest even; from
// float64 to 16 bits by way of float32. The arrays must not overlap and may be unaligned. Every CPU
// gives the same bits.
void cast(std::byte* target, DataType to, const std::byte* source, DataType from,
          std::int64_t count, double factor = 1.0);
// With the kernels of one instruction set (reduce/instruction_set.h).
void cast(std::byte* target, DataType to, const std::byte* source, DataType from,
          std::int64_t count, double factor, const KernelTable& kernels);

}  // namespace rueda
