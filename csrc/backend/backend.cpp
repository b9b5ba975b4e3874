#include "backend/backend.h"

#include "backend/buffer_pool.h"

namespace rueda {

std::shared_ptr<std::byte[]> Backend::allocate(const Lane&, std::size_t bytes) {
  if (bytes < LargeResults::min_bytes) return allocate_aligned(bytes);
  return results_->allocate(bytes);
}

Combination combination_of(const Reduction& reduction) {
  const int divisor = reduction.op == ReduceOp::average ? reduction.divisor : 1;
  return {reduction.dtype, reduction.op, reduction.prescale, divisor, reduction.postscale};
}

}  // namespace rueda
