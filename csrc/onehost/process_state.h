// What the kernel says of another process of this host, as this process sees it under /proc.
#pragma once

namespace rueda {

// The identifier under which this process sees the one that the descriptor refers to; -1 where it
// does not, as from another PID namespace.
[[nodiscard]] int identifier_of(int process_descriptor);

// Whether a thread of the process runs or waits for a processor: it lives, though it may not get to
// answer. False where all of them sleep or are stopped, as by SIGSTOP, and where that is not known.
[[nodiscard]] bool is_runnable(int process);

// Whether no thread of a process that is being killed runs any program any more, so that none reads
// or writes memory, its own or another process's: each has given up its memory, which need not have
// been taken down. Says nothing of a GPU, whose work ends later. False where it is not known.
[[nodiscard]] bool has_left_memory(int process);

}  // namespace rueda
