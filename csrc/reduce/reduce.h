// Element-wise arithmetic on contiguous arrays of any element type.
//
// float16 and bfloat16 widen to float32, compute, and round to nearest even once per call. Compiled
// without contraction into fused multiply-add, so that every CPU gives the same bits. Arrays may be
// unaligned. A boolean byte other than 0 counts as true; results are 0 or 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rueda/types.h"

namespace rueda {

// target[i] = target[i] op source[i] for i in [0, count). `average` only adds; divide() does the
// rest. Integers wrap around. Complex products are (ac - bd, ad + bc), infinities included.
// Requires is_supported(op, dtype). The arrays must not overlap.
void reduce(void* target, const void* source, std::int64_t count, DataType dtype, ReduceOp op);

// data[i] *= factor; a factor of exactly 1 changes nothing. Floating-point elements are multiplied
// in their own precision (16-bit ones in float32), with the factor rounded to it, as NumPy and
// torch do. Integers are multiplied as doubles and truncated towards zero; values out of range
// become the nearest value in range, and NaN becomes 0. Booleans do not change.
void scale(void* data, std::int64_t count, DataType dtype, double factor);

// data[i] /= ranks, the second half of an average. Integers round towards negative infinity.
// Requires is_supported(ReduceOp::average, dtype) and ranks > 0.
void divide(void* data, std::int64_t count, DataType dtype, int ranks);

// Fills with the identity of `op`: (minus) 0 for sums, 1 for products, the largest value or
// infinity for minima, all ones for "and", ... Requires is_supported(op, dtype).
void fill_identity(void* data, std::int64_t count, DataType dtype, ReduceOp op);

}  // namespace rueda
