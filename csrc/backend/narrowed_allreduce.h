// An allreduce whose elements travel as a narrower type: converted while packed into a fusion
// buffer, reduced there in the narrow type, and converted back while unpacked.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// Requires reduction.wire. `backend` reduces the buffer, which is taken from `pool`. The prescale
// factor is applied before the first rounding, the postscale factor after the last. Throws
// std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> narrowed_allreduce(Backend& backend, BufferPool& pool,
                                                            const Lane& lane,
                                                            const Reduction& reduction,
                                                            const std::vector<Piece>& pieces);

}  // namespace rueda
