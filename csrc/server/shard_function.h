// Functions that run where the values of a table are, so that only their result travels.
#pragma once

#include <string_view>

#include "rueda/server.h"

namespace rueda {

// The function of that name: one of Rueda's or of the application's; null where there is none.
[[nodiscard]] const ShardFunction* find_shard_function(std::string_view name);

}  // namespace rueda
