// How much memory this process may still take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/control_groups.h"

namespace rueda {

// In bytes: what the host has without swapping, or what is left of the limits of this process's
// control groups, whichever is less. Nothing where the system tells neither.
[[nodiscard]] std::optional<std::int64_t> available_memory();

// In bytes, what is left of the limits of this process's control group and of those that it is in,
// whichever has least: with what their caches of files hold, and with what they may still swap out.
// Nothing where there is no limit. Of a process that takes more the kernel ends one of the group's
// processes (SIGKILL), instead of telling it. `host`: the kernel's figures of the host's memory.
[[nodiscard]] std::optional<std::int64_t> memory_within_limits(
    const ControlGroupFiles& files = {}, const std::string& host = "/proc/meminfo");

// What these limits are not asked for, so that ranks that take memory at the same time do not take
// more than there is: each looks before it takes some more.
inline constexpr std::int64_t memory_to_spare = std::int64_t{32} << 20;

// Whether so many bytes more are within the limits.
[[nodiscard]] bool fits_within_limits(std::size_t bytes);

}  // namespace rueda
