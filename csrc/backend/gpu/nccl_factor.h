// How a reduction's factors are put to NCCL, which multiplies inputs only.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "backend/nccl/communicator.h"

namespace rueda {

// Nothing where NCCL cannot give the same results: bitwise operations, booleans, integers that are
// averaged or scaled, factors on anything but sums and averages. An average over all ranks without
// factors is NCCL's own; any other becomes a sum of multiplied inputs.
[[nodiscard]] std::optional<NcclCombination> nccl_combination(const Reduction& reduction,
                                                              int ranks);

}  // namespace rueda
