// Tells other processes that this one is ending, before its memory is torn down.
//
// The kernel closes a process's sockets, and reports its end, only after unmapping its memory,
// which takes about 10 ms per 100 MB. A killed thread releases its descriptors earlier if it has a
// descriptor table of its own (CLOSE_RANGE_UNSHARE) and is not the last thread. So one thread does
// nothing but hold an end of a pipe that nobody else holds. When a signal or exit() ends the
// process, holders of the other end see it closed at once. Only a core dump, which all threads wait
// for, comes before that.
//
// This reports that the process is ending, not that its other threads have stopped; for that see
// has_left_memory() in process_state.h.
#pragma once

namespace rueda {

// The other end of this process's pipe, to be passed to others. It becomes readable when the
// process is ending, or has become another program by exec(). -1 if the kernel (before 5.9) or a
// filter does not let a thread have its own descriptors. Created by the first call and kept, with
// its thread, until the process ends, across worlds; a forked child creates its own.
[[nodiscard]] int life_line();

}  // namespace rueda
