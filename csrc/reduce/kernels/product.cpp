#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelRow product_kernels = [] {
  KernelRow row;
  add_floating<Product>(row);
  add_wrapping<Product>(row);
  row[DataType::boolean] = plain<Boolean, BitAnd>();
  return row;
}();

}  // namespace rueda::RUEDA_KERNELS
