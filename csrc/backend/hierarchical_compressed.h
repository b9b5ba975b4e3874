// A compressed allreduce of members on several hosts, of which some have more than one.
//
// Each host's members reduce-scatter their tensors as float32 in its memory; those that hold a
// slice exchange it encoded between hosts, as in compressed_allreduce.h, and the others take the
// decoded result from them. So a host sends 2(H-1)/H of the encoded data, and each value is rounded
// once on its way to its owner and once on its way back: it is the sum over a host that is rounded.
// Parts are under way at once, as without a codec.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// `policy`: of stages. `pool`: of memory that others on this host reach; used for all but a single
// tensor of float32 that they reach. Residuals belong to the sum over this host: a member keeps
// them for the slice that it exchanges. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_compressed(const Lane& lane,
                                                                 const HostPolicy& policy,
                                                                 BufferPool& pool,
                                                                 const Reduction& reduction,
                                                                 std::vector<Piece> pieces);

}  // namespace rueda
