// Room for the file descriptors that a world takes.
#pragma once

#include "core/status.h"

namespace rueda {

// Raises the soft limit of open files (RLIMIT_NOFILE) where `local_size` ranks on this host need
// more than it leaves. ErrorCode::initialization, saying what is needed, where the hard limit is
// too low: better at once than as a time-out.
[[nodiscard]] Status provide_descriptors(int local_size);

}  // namespace rueda
