// Element-wise arithmetic on contiguous arrays of any element type.
//
// float16 and bfloat16 widen to float32, compute, and round to nearest even once per call. Compiled without
// contraction into fused multiply-add, so that every CPU gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rueda/types.h"

namespace rueda {

// target[i] = target[i] op source[i] for i in [0, count). `average` adds: dividing is `divide`'s.
// Requires is_supported(op, dtype). The arrays must not overlap.
void reduce(void* target, const void* source, std::int64_t count, DataType dtype, ReduceOp op);

// data[i] *= factor. Integers are multiplied as doubles and truncated; booleans are left alone.
void scale(void* data, std::int64_t count, DataType dtype, double factor);

// data[i] /= ranks, the second half of an average. Integers round towards negative infinity.
void divide(void* data, std::int64_t count, DataType dtype, int ranks);

// Fills with the value that `op` ignores: 0 for sums, 1 for products, the largest value for minima, ...
void fill_identity(void* data, std::int64_t count, DataType dtype, ReduceOp op);

}  // namespace rueda
