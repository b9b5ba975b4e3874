// Room for the file descriptors that a world takes.
#pragma once

#include "core/status.h"

namespace rueda {

// Raises the soft limit of open files (RLIMIT_NOFILE) where `local_size` ranks on this host need
// more than it leaves. ErrorCode::initialization, saying what is needed, where the hard limit is
// too low: better at once than as a time-out.
[[nodiscard]] Status provide_descriptors(int local_size);

// Raises it, as far as the hard limit goes, for `remote_size` ranks on other hosts as well: what
// each takes once there is much to say to it. The application's own descriptors would be the ones
// for which there is no room.
void provide_remote_descriptors(int local_size, int remote_size);

// Lets the process's table of descriptors grow now to what this world and one after it take. Linux
// doubles the table when a descriptor does not fit, and where the process has several threads it
// then waits for an RCU grace period: 10 ms and more (expand_fdtable() in fs/file.c), which whoever
// forms the next world would wait for otherwise.
void grow_descriptor_table(int local_size);

}  // namespace rueda
