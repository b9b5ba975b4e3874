#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelRow min_kernels = [] {
  KernelRow row;
  add_floating<Min>(row);
  add_ordered<Min>(row);
  row[DataType::boolean] = plain<Boolean, BitAnd>();
  return row;
}();

}  // namespace rueda::RUEDA_KERNELS
