// Tells other processes that this one is ending, before its memory is taken down.
//
// The kernel closes a process's sockets, and says of it that it has ended, only when it has
// unmapped its memory, which takes about 10 ms for 100 MB. A thread that is killed gives up its
// descriptors before that where it has a table of its own (CLOSE_RANGE_UNSHARE), unless it is the
// last one. So a thread does nothing but hold the end of a pipe that nobody else has: when a signal
// or exit() ends the process, whoever has the other end sees at once that it is closed. Only a core
// dump, which all threads wait for, comes first.
//
// That says that the process is ending, not that its other threads have stopped: has_left_memory()
// in process_state.h tells that.
#pragma once

namespace rueda {

// The other end of this process's pipe, to be handed to others: readable when the process is
// ending, or when it has become another program by exec(). -1 where the kernel (older than 5.9) or
// a filter does not let a thread have descriptors of its own. Made at the first call and kept until
// the process ends, with its thread, also between worlds; a forked child makes one of its own.
[[nodiscard]] int life_line();

}  // namespace rueda
