#include "onehost/wake.h"

#include <linux/membarrier.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace rueda {

namespace {

constexpr std::uint32_t on_word = 1;
constexpr std::uint32_t on_descriptors = 1U << 16;

// The two halves of one protocol: what each side did before is ordered before its check of what the
// other did. ThreadSanitizer does not understand fences; for it, a read-modify-write of `sleepers`
// on both sides gives the same order.
#if defined(__SANITIZE_THREAD__)
std::uint32_t look_for_sleepers(WakeWord& word) {
  return word.sleepers.fetch_add(0, std::memory_order_seq_cst);
}
void become_sleeper(WakeWord& word, std::uint32_t as) {
  word.sleepers.fetch_add(as, std::memory_order_seq_cst);
}
#else
std::uint32_t look_for_sleepers(WakeWord& word) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return word.sleepers.load(std::memory_order_relaxed);
}
void become_sleeper(WakeWord& word, std::uint32_t as) {
  word.sleepers.fetch_add(as, std::memory_order_relaxed);
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

void wake(const WakeTarget& target) {
  const std::uint32_t sleepers = look_for_sleepers(*target.word);
  if (sleepers == 0) return;
  // Before the system call: a sleeper that has checked but does not sleep yet will not sleep.
  target.word->wakes.fetch_add(1, std::memory_order_release);
  if (sleepers % on_descriptors != 0) futex_wake_all(target.word->wakes, FutexReach::host);
  if (sleepers >= on_descriptors) ::eventfd_write(target.event, 1);
}

Sleeper::Sleeper(WakeWord& word, On on, bool fences)
    : word_(word), as_(on == On::word ? on_word : on_descriptors) {
  become_sleeper(word_, as_);
  if (fences) fence_for_others();
  seen_ = word_.wakes.load(std::memory_order_acquire);
}

Sleeper::~Sleeper() {
  word_.sleepers.fetch_sub(as_, std::memory_order_release);
}

FutexWake Sleeper::sleep(std::optional<Time> deadline) {
  const FutexWake woken = futex_wait(word_.wakes, seen_, deadline, FutexReach::host);
  seen_ = word_.wakes.load(std::memory_order_acquire);
  return woken;
}

FutexWake Sleeper::sleep(std::optional<Time> deadline, std::span<pollfd> descriptors) {
  timespec left{};
  if (deadline) {
    const auto wait = std::max<Duration>(*deadline - Clock::now(), Duration::zero());
    left.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
    left.tv_nsec = (wait % std::chrono::seconds(1)).count();
  }
  const int ready =
      ::ppoll(descriptors.data(), descriptors.size(), deadline ? &left : nullptr, nullptr);
  if (ready > 0) return FutexWake::changed;
  return ready == 0 ? FutexWake::timeout : FutexWake::interrupted;
}

}  // namespace rueda
