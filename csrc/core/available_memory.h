// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>

namespace rueda {

// In bytes: what the host has without swapping, or what is left of the limit of this process's
// control group (version 2), whichever is less. Nothing where the system tells neither.
[[nodiscard]] std::optional<std::int64_t> available_memory();

}  // namespace rueda
