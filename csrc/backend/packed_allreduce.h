// An allreduce through a fusion buffer: of several tensors, or of one that other ranks cannot
// reach.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// Begins the allreduce of the packed data: one piece, with an output.
using StartPacked = std::function<std::unique_ptr<Operation>(const Piece& all)>;

// Packs immediately, into a buffer from `pool`. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> packed_allreduce(BufferPool& pool, const Lane& lane,
                                                          DataType dtype,
                                                          const std::vector<Piece>& pieces,
                                                          const StartPacked& start);

}  // namespace rueda
