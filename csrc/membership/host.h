// Which host this process runs on.
#pragma once

#include <string>

namespace rueda {

// For people: gethostname().
[[nodiscard]] std::string host_name();

// For comparison: equal for two processes that run on one kernel and in one network namespace, so
// that each can reach the other's sockets in the abstract namespace. Two containers on one machine
// differ. Virtual machines that were resumed from one snapshot do not: see host_beacon.h.
[[nodiscard]] std::string host_identity();

}  // namespace rueda
