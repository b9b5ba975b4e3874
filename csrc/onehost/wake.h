// Sleeping on a word of shared memory until another rank has something: no system call for the
// waker while nobody sleeps, and no wake-up is missed.
//
// The waker makes visible what it wakes for and calls wake(). The sleeper makes itself known by a
// Sleeper, looks, and sleeps only when there is nothing: either its look sees what the waker did,
// or the waker sees the sleeper.
//
// Who waits for a network as well sleeps on descriptors instead, of which one is an eventfd:
// whoever wakes it has that, too.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "core/clock.h"
#include "core/futex.h"

namespace rueda {

// A place where a rank sleeps until others have something for it. Lies in shared memory.
struct alignas(64) WakeWord {
  // Grows with every wake-up that somebody may sleep through.
  std::atomic<std::uint32_t> wakes;
  // How many threads sleep, or are about to and look a last time: on this word in the lower half,
  // on descriptors in the upper half.
  std::atomic<std::uint32_t> sleepers;
};

// What it takes to wake a rank.
struct WakeTarget {
  WakeWord* word = nullptr;
  int event = -1;  // an eventfd, for who sleeps on descriptors; -1 where nobody does
};

// Wakes whoever sleeps there; costs no system call while nobody does. The caller has made visible
// what it wakes for.
void wake(const WakeTarget& target);
inline void wake(WakeWord& word) {
  wake(WakeTarget{&word});
}

// Whether this process, when one of its threads goes to sleep, makes all processors fence (Linux's
// membarrier), so that whoever wakes it need not. A fence waits for the store before it to reach
// the other processors, about as long as the whole exchange of a small message takes. The first
// call registers the process with the kernel; false where it refuses.
[[nodiscard]] bool can_fence_for_others();

// Makes all threads of processes for which can_fence_for_others() holds fence; this one as well.
void fence_for_others();

// wake(), for words on which only processes sleep that fence for others.
inline void wake_without_fence(const WakeTarget& target) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (target.word->sleepers.load(std::memory_order_relaxed) != 0) wake(target);
}

// Counts the calling thread among the sleepers of a word for as long as it exists:
//
//   Sleeper sleeper(word);
//   while (!there_is_something()) sleeper.sleep(deadline);
class Sleeper {
 public:
  enum class On : std::uint8_t { word, descriptors };
  // `fences`: whether anybody wakes it without a fence.
  explicit Sleeper(WakeWord& word, On on = On::word, bool fences = true);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Sleeps until somebody has called wake() since this object was made or the last sleep ended, or
  // the deadline has passed; `interrupted` when a signal handler ran. May end early: look again.
  FutexWake sleep(std::optional<Time> deadline);
  // The same where it sleeps on descriptors, of which one is the eventfd of this WakeTarget: until
  // one has the events that it is asked for. What has come is told in `descriptors`.
  FutexWake sleep(std::optional<Time> deadline, std::span<pollfd> descriptors);

 private:
  WakeWord& word_;
  const std::uint32_t as_;  // how it is counted
  std::uint32_t seen_;
};

}  // namespace rueda
