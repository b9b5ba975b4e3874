// Sleeping on one descriptor until a deadline.
#pragma once

#include "core/clock.h"

namespace rueda {

// Sleeps until `fd` is readable (true), the deadline has passed, or a signal handler ran (false).
bool wait_readable(int fd, Time deadline);

}  // namespace rueda
