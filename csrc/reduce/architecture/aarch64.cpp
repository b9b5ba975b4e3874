#include <array>

#include "reduce/instruction_set.h"

namespace rueda {

std::span<const KernelTable* const> supported_kernels() {
  static constexpr std::array all{&neon::kernels};
  return all;
}

}  // namespace rueda
