// What the kernel reports of another process on this host, as seen under /proc.
#pragma once

namespace rueda {

// This process's id for the process that the descriptor refers to; -1 if it cannot see that
// process, as from another PID namespace.
[[nodiscard]] int identifier_of(int process_descriptor);

// Whether a thread of the process is running or runnable: it is alive, though it may not get to
// answer. False if all threads sleep or are stopped (SIGSTOP), and if unknown.
[[nodiscard]] bool is_runnable(int process);

// Whether every thread of the process is stopped (SIGSTOP): it does nothing until it is continued.
// False if unknown.
[[nodiscard]] bool is_stopped(int process);

// Whether the process has crashed and the kernel is writing its core dump: its code does not run
// any more, though its connections stay open. False if unknown, and before Linux 4.15.
[[nodiscard]] bool is_dumping_core(int process);

// Whether no thread of a process that is being killed executes any more, so that none accesses
// memory, its own or another process's: each has given up its memory, which may not have been torn
// down yet. Says nothing about a GPU, whose work ends later. False if unknown.
[[nodiscard]] bool has_left_memory(int process);

}  // namespace rueda
