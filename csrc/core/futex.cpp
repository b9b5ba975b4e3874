#include "core/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace rueda {

namespace {

int with_reach(int operation, FutexReach reach) {
  return reach == FutexReach::process ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

FutexWake futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                     std::optional<Time> deadline, FutexReach reach) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  timespec until{};
  if (deadline) {
    const auto since_epoch =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline->time_since_epoch()).count();
    until.tv_sec = since_epoch / 1'000'000'000;
    until.tv_nsec = since_epoch % 1'000'000'000;
  }
  // The bitset form takes an absolute time of CLOCK_MONOTONIC, which steady_clock is.
  const long result = ::syscall(SYS_futex, &word, with_reach(FUTEX_WAIT_BITSET, reach), expected,
                                deadline ? &until : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
  if (result == 0 || errno == EAGAIN) return FutexWake::changed;
  return errno == ETIMEDOUT ? FutexWake::timeout : FutexWake::interrupted;
}

void futex_wake_one(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, with_reach(FUTEX_WAKE, FutexReach::process), 1, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word, FutexReach reach) {
  ::syscall(SYS_futex, &word, with_reach(FUTEX_WAKE, reach), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rueda
