// Reserves room for another process set in the shared memory of a host's ranks.
#pragma once

#include <memory>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "membership/world.h"
#include "onehost/control_memory.h"

namespace rueda {

// Reserves what a set of these ranks, in any order, will need of this rank's memory; null if it
// needs nothing, because this rank is not among them or shares memory with none of the others.
// Fails if there is no room. Any thread: a rank without room says so before all have agreed.
[[nodiscard]] Expected<std::shared_ptr<ControlRoom>> reserve_room(const WorldLayout& layout,
                                                                  std::vector<int> ranks);

// This rank will not open the set, because it got no room for it: the other members need not wait
// for it before they reuse what they have published there.
void forgo_room(const WorldLayout& layout, int set_id, std::vector<int> ranks,
                const Options& options);

}  // namespace rueda
