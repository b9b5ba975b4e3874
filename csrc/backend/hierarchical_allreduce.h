// Allreduce for members on several hosts.
//
// hierarchical: each host's members reduce-scatter in memory, which leaves a slice with each of k
// members, where k is the size of the smallest host. Each slice goes around a ring of hosts and is
// then gathered in memory. In total, a host sends 2(H-1)/H of the data. Large tensors are cut into
// parts, several of which are in flight at once, so that memory and links are busy together.
//
// doubling: one member per host gets the host's sum, and these members exchange it in log2(H) hops.
//
// halving: the same members exchange halves, quarters and so on of it, in 2 log2(H) hops.
//
// tree: the same members reduce each half along a tree of its own, in chunks, in 2 log2(H) hops.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace rueda {

// `policy`: from policy_of_stages(). The piece has an output; the other members on this host can
// reach both it and the input.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_allreduce(const Lane& lane,
                                                                const HostPolicy& policy,
                                                                const Reduction& reduction,
                                                                const Piece& piece,
                                                                Algorithm algorithm);

}  // namespace rueda
