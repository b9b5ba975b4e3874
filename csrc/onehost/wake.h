// Sleeping on a word of shared memory until another rank has something: the waker makes no system
// call while nobody sleeps, and no wake-up is lost.
//
// The waker publishes what it wakes for, then calls wake(). The sleeper registers itself with a
// Sleeper, checks for work, and sleeps only if there is none. So either the check sees what the
// waker did, or the waker sees the sleeper.
//
// A thread that also waits for a network sleeps on descriptors instead, including an eventfd, which
// its wakers hold as well.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "core/clock.h"
#include "core/futex.h"

namespace rueda {

// Where a rank sleeps until others have something for it. In shared memory.
struct alignas(64) WakeWord {
  // Incremented by every wake-up that somebody may be sleeping through.
  std::atomic<std::uint32_t> wakes;
  // Number of threads that sleep, or are doing their last check: on this word in the lower half, on
  // descriptors in the upper half.
  std::atomic<std::uint32_t> sleepers;
};

// What is needed to wake a rank.
struct WakeTarget {
  WakeWord* word = nullptr;
  int event = -1;  // eventfd for sleepers on descriptors; -1 if there are none
};

// Wakes the sleepers; no system call if there are none. The caller must have published what it
// wakes for.
void wake(const WakeTarget& target);
inline void wake(WakeWord& word) {
  wake(WakeTarget{&word});
}

// Whether a thread of this process that goes to sleep makes all processors fence (Linux's
// membarrier), so that its wakers need not. A fence waits for the preceding store to reach the
// other processors, which takes about as long as the whole exchange of a small message. The first
// call registers the process with the kernel; false if the kernel refuses.
[[nodiscard]] bool can_fence_for_others();

// Makes all threads fence, in this and every other process where can_fence_for_others() holds.
void fence_for_others();

// wake(), for words on which only processes sleep that fence for others.
inline void wake_without_fence(const WakeTarget& target) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (target.word->sleepers.load(std::memory_order_relaxed) != 0) wake(target);
}

// Counts the calling thread as a sleeper on a word during its lifetime:
//
//   Sleeper sleeper(word);
//   while (!there_is_something()) sleeper.sleep(deadline);
class Sleeper {
 public:
  enum class On : std::uint8_t { word, descriptors };
  // `fences`: whether any waker omits the fence.
  explicit Sleeper(WakeWord& word, On on = On::word, bool fences = true);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Sleeps until wake() has been called since construction or since the last sleep ended, or the
  // deadline has passed. `interrupted`: a signal handler ran. May return early, so check again.
  FutexWake sleep(std::optional<Time> deadline);
  // The same on descriptors, one of which is the WakeTarget's eventfd: until one of them has a
  // requested event. `descriptors` receives the events.
  FutexWake sleep(std::optional<Time> deadline, std::span<pollfd> descriptors);

 private:
  WakeWord& word_;
  const std::uint32_t as_;  // how it is counted
  std::uint32_t seen_;
};

}  // namespace rueda
