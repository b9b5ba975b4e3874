// Functions that run where the values of a table are, so that only their result travels.
#pragma once

#include <string_view>

#include "rueda/server.h"

namespace rueda {

// The function with this name, built-in or registered by the application; null if there is none.
[[nodiscard]] const ShardFunction* find_shard_function(std::string_view name);

}  // namespace rueda
