#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelRow sum_kernels = [] {
  KernelRow row;
  add_floating<Sum>(row);
  add_wrapping<Sum>(row);
  row[DataType::boolean] = plain<Boolean, BitOr>();
  // Complex numbers are added, scaled and divided part by part.
  row[DataType::complex64] = scalable<Native<float>, Sum>(2);
  row[DataType::complex128] = scalable<Native<double>, Sum>(2);
  return row;
}();

}  // namespace rueda::RUEDA_KERNELS
