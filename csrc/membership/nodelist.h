// Slurm's short form of host names: "n[01-12,15],gpu7", "rack[1-2]node[3-4]".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace rueda {

// What a list may name at most; more is an error, so that no text makes this process run out of
// memory.
inline constexpr std::size_t max_listed_nodes = 1 << 16;

// The names in order: of several brackets in one name the last varies fastest, and numbers are as
// wide as the first one of their range. `scontrol show hostnames` has the same order for one and
// two brackets; of Slurm 22.05, it orders three otherwise and refuses text after the last bracket.
// ErrorCode::invalid_argument with the position, from 1, of what makes no sense.
[[nodiscard]] Expected<std::vector<std::string>> expand_node_list(std::string_view list);

}  // namespace rueda
