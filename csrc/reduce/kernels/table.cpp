#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelTable kernels{
    .name = name,
    .rows = {&sum_kernels, &sum_kernels, &min_kernels, &max_kernels, &product_kernels,
             &bit_and_kernels, &bit_or_kernels, &bit_xor_kernels},
    .stream = &stream_bytes,
    .narrow = &narrow_floats,
    .widen = &widen_to_floats,
    .quantize = &quantize_blocks,
    .dequantize = &dequantize,
    .add_dequantized = &add_dequantized,
};

}  // namespace rueda::RUEDA_KERNELS
