// System calls that a test forbids its process for good.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace rueda::test {

// Installs a filter with the action `listed` for calls in the list and `others` for all others
// (SECCOMP_RET_...). It applies to the calling thread and the threads it starts; with
// SECCOMP_FILTER_FLAG_TSYNC to all threads.
inline void filter_calls(const std::vector<long>& calls, unsigned listed, unsigned others,
                         unsigned flags = 0) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, listed));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, others));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) != 0) {
    throw std::runtime_error("the system calls cannot be filtered");
  }
}

// From now on these calls fail with `error`.
inline void forbid(const std::vector<long>& calls, int error) {
  filter_calls(calls, SECCOMP_RET_ERRNO | static_cast<unsigned>(error), SECCOMP_RET_ALLOW);
}

// From now on all other calls raise SIGSYS, on every thread.
inline void allow_only(const std::vector<long>& calls) {
  filter_calls(calls, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP, SECCOMP_FILTER_FLAG_TSYNC);
}

}  // namespace rueda::test
