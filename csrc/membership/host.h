// Identifies the host that this process runs on.
#pragma once

#include <string>

namespace rueda {

// For display: gethostname().
[[nodiscard]] std::string host_name();

// For comparison: equal for two processes on the same kernel and in the same network namespace, so
// that each can reach the other's sockets in the abstract namespace. Two containers on one machine
// differ. Virtual machines resumed from the same snapshot do not: see host_beacon.h.
[[nodiscard]] std::string host_identity();

}  // namespace rueda
