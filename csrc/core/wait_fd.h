// Sleeps on one descriptor until a deadline.
#pragma once

#include "core/clock.h"

namespace rueda {

// Sleep until `fd` is readable or writable (true), or broken (true), until the deadline has passed
// or until a signal handler ran (false). If the thread is Interruptible, they throw what `look`
// throws.
bool wait_readable(int fd, Time deadline);
bool wait_writable(int fd, Time deadline);

// The same, but signals do not end the sleep: false only once the deadline has passed.
bool becomes_readable(int fd, Time deadline);
bool becomes_writable(int fd, Time deadline);

}  // namespace rueda
