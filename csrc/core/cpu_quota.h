// How many processors' time this process's control group gets.
#pragma once

#include <optional>

#include "core/control_groups.h"

namespace rueda {

// E.g. 2.5, of the group and those that it is in, whichever gets least; nothing where there is no
// limit.
[[nodiscard]] std::optional<double> cpu_quota(const ControlGroupFiles& files = {});

// How many ranks can compute at the same time by that; 0 where there is no limit.
[[nodiscard]] int ranks_within_cpu_quota();

}  // namespace rueda
