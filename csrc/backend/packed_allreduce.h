// An allreduce of several tensors, or of one that the others cannot reach, through a fusion buffer.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// Begins the allreduce of what has been packed: one piece, with an output.
using StartPacked = std::function<std::unique_ptr<Operation>(const Piece& all)>;

// Packs at once into a buffer of `pool`. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> packed_allreduce(BufferPool& pool, const Lane& lane,
                                                          DataType dtype,
                                                          const std::vector<Piece>& pieces,
                                                          const StartPacked& start);

}  // namespace rueda
