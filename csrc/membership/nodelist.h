// Slurm's notation for lists of hosts: "n[01-12,15],gpu7", "rack[1-2]node[3-4]".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace rueda {

// Maximum number of names in a list; more is an error, so that no text can exhaust memory.
inline constexpr std::size_t max_listed_nodes = 1 << 16;

// The names in order: with several brackets in a name, the last varies fastest; numbers are as wide
// as the first one of their range. `scontrol show hostnames` gives the same order for one and two
// brackets; in Slurm 22.05, it orders three differently and refuses text after the last bracket.
// ErrorCode::invalid_argument with the position, from 1, of the syntax error.
[[nodiscard]] Expected<std::vector<std::string>> expand_node_list(std::string_view list);

}  // namespace rueda
