// A compressed allreduce for members on several hosts, at least one of which has several members.
//
// Each host's members reduce-scatter their tensors as float32 in memory. The members that hold a
// slice exchange it encoded between hosts, as in compressed_allreduce.h; the others copy the
// decoded result from them. A host thus sends 2(H-1)/H of the encoded data. Each value (a sum over
// a host) is rounded once on its way to its owner and once on its way back. Parts are in flight at
// once, as without a codec.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

// `policy`: from policy_of_stages(). `pool`: of memory that the other members on this host can
// reach; used for everything but a single float32 tensor that they can reach. Residuals belong to
// the sum over this host: a member keeps those of the slice it exchanges. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_compressed(const Lane& lane,
                                                                 const HostPolicy& policy,
                                                                 BufferPool& pool,
                                                                 const Reduction& reduction,
                                                                 std::vector<Piece> pieces);

}  // namespace rueda
