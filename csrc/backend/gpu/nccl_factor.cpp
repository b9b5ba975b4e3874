#include "backend/gpu/nccl_factor.h"

#include <array>

#include "reduce/cast.h"

namespace rueda {

namespace {

// Rueda multiplies 16-bit floats by a float32; NCCL rounds the factor to their own type.
bool is_exact(double factor, DataType dtype) {
  if (info(dtype).kind != DataKind::floating) return false;
  if (size_of(dtype) > 2) return true;
  const auto wanted = static_cast<float>(factor);
  std::array<std::byte, 2> narrow{};
  float kept = 0;
  cast(narrow.data(), dtype, reinterpret_cast<const std::byte*>(&wanted), DataType::float32, 1);
  cast(reinterpret_cast<std::byte*>(&kept), DataType::float32, narrow.data(), dtype, 1);
  return kept == wanted;
}

}  // namespace

Reduction on_the_wire(const Reduction& reduction) {
  Reduction narrow = reduction;
  if (!reduction.wire) return narrow;
  narrow.dtype = *reduction.wire;
  narrow.wire.reset();
  narrow.prescale = narrow.postscale = 1.0;
  return narrow;
}

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
  if (how.scale != 1.0 && !is_exact(how.scale, reduction.dtype)) return std::nullopt;
  if (averages && info(reduction.dtype).kind != DataKind::floating) return std::nullopt;
  if (!nccl_reduction(how.op, how.dtype)) return std::nullopt;
  return how;
}

bool nccl_can_take_part(const Reduction& reduction, int ranks, bool all_have_kernels) {
  if (reduction.wire && !all_have_kernels) return false;
  // Ranks that have joined give zeros.
  const bool is_sum = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::average;
  if (reduction.contributors != ranks && !is_sum) return false;
  return nccl_combination(on_the_wire(reduction), ranks).has_value();
}

}  // namespace rueda
