// How much more memory this process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/control_groups.h"

namespace rueda {

// In bytes: what the host has without swapping, or what remains of the limits of this process's
// control groups, whichever is less. Empty if the system reports neither.
[[nodiscard]] std::optional<std::int64_t> available_memory();

// In bytes: what remains of the limits of this process's control group and its ancestors, whichever
// has least, including their file caches and what they may still swap out. Empty if there is no
// limit. If a process uses more, the kernel kills one of the group's processes (SIGKILL) instead of
// failing an allocation. `host`: the kernel's figures for the host's memory.
[[nodiscard]] std::optional<std::int64_t> memory_within_limits(
    const ControlGroupFiles& files = {}, const std::string& host = "/proc/meminfo");

// A reserve within these limits, so that ranks that allocate at the same time do not exceed them:
// each checks before it allocates more.
inline constexpr std::int64_t memory_to_spare = std::int64_t{32} << 20;

// Whether `bytes` more are within the limits.
[[nodiscard]] bool fits_within_limits(std::size_t bytes);

}  // namespace rueda
