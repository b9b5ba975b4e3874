#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

constinit const KernelRow max_kernels = [] {
  KernelRow row;
  add_floating<Max>(row);
  add_ordered<Max>(row);
  row[DataType::boolean] = plain<Boolean, BitOr>();
  return row;
}();

}  // namespace rueda::RUEDA_KERNELS
