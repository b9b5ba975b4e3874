// Allreduce of members on several hosts.
//
// hierarchical: each host's members reduce-scatter in its memory, so that as many of them as the
// smallest host has hold a slice each; each slice goes around a ring of hosts, and is gathered in
// memory. Summed over its members, a host sends 2(H-1)/H of the data. Large tensors are cut into
// parts of which several are under way at once, so that memory and links are busy together.
//
// doubling: one member of each host gets all of it, and these exchange it in log2(H) hops.
//
// tree: the same member reduces one half of it along one tree and the other along another, each in
// chunks, in 2 log2(H) hops.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace rueda {

// `policy`: of stages. The piece has an output, and the others on this host reach it, as they do
// its input.
[[nodiscard]] std::unique_ptr<Operation> hierarchical_allreduce(const Lane& lane,
                                                                const HostPolicy& policy,
                                                                const Reduction& reduction,
                                                                const Piece& piece,
                                                                Algorithm algorithm);

}  // namespace rueda
