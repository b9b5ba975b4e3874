// Which host this process runs on.
#pragma once

#include <string>

namespace rueda {

// For people: gethostname().
[[nodiscard]] std::string host_name();

// For comparison: equal for two processes exactly when they run on one kernel and in one network
// namespace, so that each can reach the other's sockets in the abstract namespace. Two containers
// on one machine differ.
[[nodiscard]] std::string host_identity();

}  // namespace rueda
