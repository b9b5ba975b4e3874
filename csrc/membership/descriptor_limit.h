// Room for the file descriptors that a world needs.
#pragma once

#include <cstddef>

#include "core/status.h"

namespace rueda {

// Raises the soft limit of open files (RLIMIT_NOFILE) if `local_size` ranks on this host need more
// than it leaves. ErrorCode::initialization, with what is needed, if the hard limit is too low:
// better than a timeout later.
[[nodiscard]] Status provide_descriptors(int local_size);

// Also raises it, as far as the hard limit allows, for `remote_size` ranks on other hosts, at what
// each needs under heavy traffic over so many network interfaces. Otherwise the application's own
// descriptors would be the ones to find no room.
void provide_remote_descriptors(int local_size, int remote_size, std::size_t interfaces);

// Grows the process's descriptor table now to the size that this world and a later one need. Linux
// doubles the table when a descriptor does not fit, and in a process with several threads then
// waits for an RCU grace period: 10 ms and more (expand_fdtable() in fs/file.c), which would
// otherwise delay the formation of the next world.
void grow_descriptor_table(int local_size);

}  // namespace rueda
