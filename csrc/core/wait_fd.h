// Sleeping on one descriptor until a deadline.
#pragma once

#include "core/clock.h"

namespace rueda {

// Sleep until `fd` is readable or writable (true), or broken (true); until the deadline has passed
// or a signal handler ran (false). Where the caller is Interruptible they throw what it throws.
bool wait_readable(int fd, Time deadline);
bool wait_writable(int fd, Time deadline);

}  // namespace rueda
