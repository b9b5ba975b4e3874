#include "backend/gpu/nccl_factor.h"

namespace rueda {

std::optional<NcclCombination> nccl_combination(const Reduction& reduction, int ranks) {
  const bool averages = reduction.op == ReduceOp::average;
  const bool scales = reduction.prescale != 1.0 || reduction.postscale != 1.0;
  NcclCombination how{reduction.dtype, reduction.op, 1.0};
  if (averages && (scales || reduction.divisor != ranks)) {
    how.op = ReduceOp::sum;
    how.scale = reduction.prescale * reduction.postscale / reduction.divisor;
  } else if (scales) {
    if (!averages && reduction.op != ReduceOp::sum) return std::nullopt;
    how.scale = reduction.prescale * reduction.postscale;
  }
  if (how.scale != 1.0 && info(reduction.dtype).kind != DataKind::floating) return std::nullopt;
  if (averages && info(reduction.dtype).kind != DataKind::floating) return std::nullopt;
  if (!nccl_reduction(how.op, how.dtype)) return std::nullopt;
  return how;
}

}  // namespace rueda
