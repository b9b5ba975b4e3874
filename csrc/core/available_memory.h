// How much more memory this process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/control_groups.h"

namespace rueda {

// In bytes: what the host has available without swapping, or what remains of the limits of this
// process's control groups, whichever is less. Empty if the system reports neither.
[[nodiscard]] std::optional<std::int64_t> available_memory();

// In bytes: what remains of the limits of this process's control group and its ancestors, whichever
// has least, including what the kernel can reclaim. Empty if there is no limit. If a process uses
// more, the kernel kills one of the group's processes (SIGKILL) instead of failing an allocation.
// `free_swap`: of the host, in bytes; the group's limits of swap apply.
[[nodiscard]] std::optional<std::int64_t> memory_within_limits(std::int64_t free_swap = 0,
                                                               const ControlGroupFiles& files = {});

// In bytes: a reserve within these limits, for memory that is used without checking them.
[[nodiscard]] std::int64_t memory_to_spare();

// Whether using `bytes` more leaves that reserve.
[[nodiscard]] bool fits_within_limits(std::size_t bytes);

// How much of `bytes` to touch before checking again: all of it without limits, and less the closer
// they are, so that 16 ranks, or one per processor if that is more, can allocate at the same time
// within the limits. Zero if even the smallest step, 2 MiB, would use the reserve.
[[nodiscard]] std::size_t memory_step(std::size_t bytes);

}  // namespace rueda
