// The control groups that this process is in.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace rueda {

// Where the kernel lists a process's groups, and where it shows their limits.
struct ControlGroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Calls `look` with the folder of each group in which `controller` ("cpu", "memory") may limit this
// process: its own and its ancestors, the innermost first. `version`: 1 or 2, whose files have
// different names. A folder need not exist: a container may not see the groups around its own,
// which is mounted as if it were the root.
void for_each_control_group(
    const ControlGroupFiles& files, std::string_view controller,
    const std::function<void(const std::string& folder, int version)>& look);

}  // namespace rueda
