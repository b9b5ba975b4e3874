// Sleeping on a word of shared memory until another rank has something: no system call for the
// waker while nobody sleeps, and no wake-up is missed.
//
// The waker makes visible what it wakes for and calls wake(). The sleeper makes itself known by a
// Sleeper, looks, and sleeps only when there is nothing: either its look sees what the waker did,
// or the waker sees the sleeper.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/clock.h"
#include "core/futex.h"

namespace rueda {

// A place where a rank sleeps until others have something for it. Lies in shared memory.
struct alignas(64) WakeWord {
  // Grows with every wake-up that somebody may sleep through.
  std::atomic<std::uint32_t> wakes;
  // How many threads sleep, or are about to and look a last time.
  std::atomic<std::uint32_t> sleepers;
};

// Wakes whoever sleeps on `word`; costs no system call while nobody does. The caller has made
// visible what it wakes for.
void wake(WakeWord& word);

// Whether this process, when one of its threads goes to sleep, makes all processors fence (Linux's
// membarrier), so that whoever wakes it need not. A fence waits for the store before it to reach
// the other processors, about as long as the whole exchange of a small message takes. The first
// call registers the process with the kernel; false where it refuses.
[[nodiscard]] bool can_fence_for_others();

// Makes all threads of processes for which can_fence_for_others() holds fence; this one as well.
void fence_for_others();

// wake(), for words on which only processes sleep that fence for others.
inline void wake_without_fence(WakeWord& word) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_relaxed) != 0) wake(word);
}

// Counts the calling thread among the sleepers of a word for as long as it exists:
//
//   Sleeper sleeper(word);
//   while (!there_is_something()) sleeper.sleep(deadline);
class Sleeper {
 public:
  explicit Sleeper(WakeWord& word);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Sleeps until somebody has called wake() since this object was made or the last sleep ended, or
  // the deadline has passed; `interrupted` when a signal handler ran. May end early: look again.
  FutexWake sleep(std::optional<Time> deadline);

 private:
  WakeWord& word_;
  std::uint32_t seen_;
};

}  // namespace rueda
