// What a rank says when it leaves a process set, for one that cannot: it has left the world, and
// never had the set.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/set_naming.h"
#include "plan/tree.h"

namespace rueda {

// The message with which `neighbour` would end the set, to the rank whose place in the negotiation
// `tree` tells.
[[nodiscard]] std::vector<std::byte> farewell_of(int neighbour, const Tree& tree,
                                                 const SetNaming& naming);

}  // namespace rueda
