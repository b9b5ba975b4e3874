// Room for another process set in the memory that the ranks of a host share.
#pragma once

#include <memory>
#include <vector>

#include "core/status.h"
#include "membership/world.h"
#include "onehost/control_memory.h"

namespace rueda {

// Takes what a set of these ranks, in any order, will need of this rank's memory; null where it
// needs nothing, because this rank is none of them or shares memory with none of the others. Fails
// where there is no room left. Any thread: a rank without room says so before all have agreed.
[[nodiscard]] Expected<std::shared_ptr<ControlRoom>> reserve_room(const WorldLayout& layout,
                                                                  std::vector<int> ranks);

}  // namespace rueda
