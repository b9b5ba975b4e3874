#include "backend/gpu/nccl_factor.h"

namespace rueda {

std::optional<NcclPlan> nccl_plan(const Reduction& reduction) {
  const bool averages = reduction.op == ReduceOp::average;
  const DataType dtype = reduction.wire.value_or(reduction.dtype);
  NcclPlan plan{{dtype, averages ? ReduceOp::sum : reduction.op},
                reduction.prescale / (averages ? reduction.divisor : 1),
                reduction.postscale};
  const bool is_floating = info(dtype).kind == DataKind::floating;
  if (averages && !is_floating) return std::nullopt;
  if (plan.scales() && (!is_floating || plan.how.op != ReduceOp::sum)) return std::nullopt;
  if (!nccl_reduction(plan.how.op, dtype)) return std::nullopt;
  return plan;
}

bool nccl_can_take_part(const Reduction& reduction, int ranks, bool all_have_kernels) {
  const auto plan = nccl_plan(reduction);
  if (!plan || ((reduction.wire || plan->scales()) && !all_have_kernels)) return false;
  // Ranks that have joined contribute zeros.
  return reduction.contributors == ranks || plan->how.op == ReduceOp::sum;
}

}  // namespace rueda
