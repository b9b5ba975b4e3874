// An allreduce whose elements travel as a narrower type than they are: converted while they are
// packed into a fusion buffer, reduced there as the narrow type, and converted back while they are
// unpacked.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// Requires reduction.wire. `backend` reduces the buffer, which comes from `pool`. The prescale
// factor is applied before the first rounding, the postscale factor after the last. Throws
// std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> narrowed_allreduce(Backend& backend, BufferPool& pool,
                                                            const Lane& lane,
                                                            const Reduction& reduction,
                                                            const std::vector<Piece>& pieces);

}  // namespace rueda
