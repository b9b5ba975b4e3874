// How a reduction's factors are put to NCCL, which multiplies inputs only.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "backend/nccl/communicator.h"

namespace rueda {

// What NCCL does where elements travel as another type: the factors are applied around it.
[[nodiscard]] Reduction on_the_wire(const Reduction& reduction);

// Nothing where NCCL cannot give the same results: bitwise operations, integers that are averaged
// or scaled, factors on anything but sums and averages, factors that a 16-bit float cannot hold. An
// average over all ranks without factors is NCCL's own; any other becomes a sum of multiplied
// inputs, which may differ from a quotient in the last bit.
[[nodiscard]] std::optional<NcclCombination> nccl_combination(const Reduction& reduction,
                                                              int ranks);

// Whether all ranks can give NCCL to do what it does of `reduction`.
[[nodiscard]] bool nccl_can_take_part(const Reduction& reduction, int ranks, bool all_have_kernels);

}  // namespace rueda
