// How much processor time this process's control group gets.
#pragma once

#include <optional>

#include "core/control_groups.h"

namespace rueda {

// In processors, e.g. 2.5: the least that the group and its ancestors get; empty if there is no
// limit.
[[nodiscard]] std::optional<double> cpu_quota(const ControlGroupFiles& files = {});

// How many ranks can compute at the same time within the quota; 0 if there is no limit.
[[nodiscard]] int ranks_within_cpu_quota();

}  // namespace rueda
