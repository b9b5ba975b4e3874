#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelRow bit_and_kernels = bitwise<BitAnd>();
constinit const KernelRow bit_or_kernels = bitwise<BitOr>();
constinit const KernelRow bit_xor_kernels = bitwise<BitXor>();

}  // namespace rueda::RUEDA_KERNELS
