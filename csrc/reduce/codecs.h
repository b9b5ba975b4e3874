// The codecs behind make_codec().
#pragma once

#include <memory>

#include "reduce/codec.h"
#include "reduce/kernels/kernel_table.h"
#include "rueda/types.h"

namespace rueda {

// Each value rounded to a 16-bit floating-point type.
[[nodiscard]] std::unique_ptr<const Codec> make_float_codec(DataType wire,
                                                            const KernelTable& kernels);

// Blocks of block_elements 8-bit integers, each preceded by its scale.
[[nodiscard]] std::unique_ptr<const Codec> make_block_codec(const KernelTable& kernels);

// Some values with their positions, chosen by magnitude or at random.
[[nodiscard]] std::unique_ptr<const Codec> make_sparse_codec(CodecKind kind, double fraction);

}  // namespace rueda
