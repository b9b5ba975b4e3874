// How a reduction is expressed in NCCL. NCCL itself does not scale: kernels apply the factors
// before and after.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "backend/nccl/communicator.h"

namespace rueda {

struct NcclPlan {
  NcclCombination how;
  double before = 1.0;  // multiplies each input
  double after = 1.0;   // multiplies the result

  [[nodiscard]] bool scales() const { return before != 1.0 || after != 1.0; }
};

// Uses the wire type if there is one. An average divides before it sums, so that 16-bit sums do not
// overflow. Returns nullopt if NCCL cannot give the same results: bitwise operations, averages and
// scaled sums of elements that are not floating-point, and factors on anything but sums and
// averages.
[[nodiscard]] std::optional<NcclPlan> nccl_plan(const Reduction& reduction);

// Whether all `ranks` ranks can do NCCL's part of `reduction`.
[[nodiscard]] bool nccl_can_take_part(const Reduction& reduction, int ranks, bool all_have_kernels);

}  // namespace rueda
