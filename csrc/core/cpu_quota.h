// How many processors' time this process's control group gets.
#pragma once

#include <optional>
#include <string>

namespace rueda {

// E.g. 2.5, of the group and those that it is in, whichever gets least; nothing where there is no
// limit. `groups` and `mount`: where the kernel says which groups these are, and of their limits.
[[nodiscard]] std::optional<double> cpu_quota(const std::string& groups = "/proc/self/cgroup",
                                              const std::string& mount = "/sys/fs/cgroup");

// How many ranks can compute at the same time by that; 0 where there is no limit.
[[nodiscard]] int ranks_within_cpu_quota();

}  // namespace rueda
