#include "onehost/wake.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rueda {

namespace {

// The two halves of one agreement: what each side did before is ordered before its look at what the
// other did. The thread sanitizer understands no fences; there a read-modify-write of `sleepers`
// on both sides orders the same.
#if defined(__SANITIZE_THREAD__)
std::uint32_t look_for_sleepers(WakeWord& word) {
  return word.sleepers.fetch_add(0, std::memory_order_seq_cst);
}
void become_sleeper(WakeWord& word) {
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
}
#else
std::uint32_t look_for_sleepers(WakeWord& word) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return word.sleepers.load(std::memory_order_relaxed);
}
void become_sleeper(WakeWord& word) {
  word.sleepers.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
#endif

long membarrier(int command) {
  return ::syscall(SYS_membarrier, command, 0, 0);
}

}  // namespace

bool can_fence_for_others() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return registered;
#endif
}

void fence_for_others() {
  if (can_fence_for_others()) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void wake(WakeWord& word) {
  if (look_for_sleepers(word) == 0) return;
  // Before the system call: a sleeper that has looked in vain but does not sleep yet will not.
  word.wakes.fetch_add(1, std::memory_order_release);
  futex_wake_all(word.wakes, FutexReach::host);
}

Sleeper::Sleeper(WakeWord& word) : word_(word) {
  become_sleeper(word_);
  fence_for_others();
  seen_ = word_.wakes.load(std::memory_order_acquire);
}

Sleeper::~Sleeper() {
  word_.sleepers.fetch_sub(1, std::memory_order_release);
}

FutexWake Sleeper::sleep(std::optional<Time> deadline) {
  const FutexWake woken = futex_wait(word_.wakes, seen_, deadline, FutexReach::host);
  seen_ = word_.wakes.load(std::memory_order_acquire);
  return woken;
}

}  // namespace rueda
