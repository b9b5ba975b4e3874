// How a reduction is put to NCCL, which multiplies nothing here: factors are applied around it, by
// kernels.
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

// Of the wire type where there is one. An average divides before it sums, so that 16-bit sums do
// not overflow. Nothing where NCCL cannot give the same results: bitwise operations, averages and
// scaled sums of anything but floating-point elements, factors on anything but sums and averages.
[[nodiscard]] std::optional<NcclPlan> nccl_plan(const Reduction& reduction);

// Whether all `ranks` ranks can give NCCL to do what it does of `reduction`.
[[nodiscard]] bool nccl_can_take_part(const Reduction& reduction, int ranks, bool all_have_kernels);

}  // namespace rueda
