// Decides which thread makes progress. One thread at a time holds the progress lock: the progress
// thread, or a caller that is waiting for a handle anyway, which saves it two thread switches.
//
// The progress thread holds the lock only while something is in progress, and yields it to callers
// that want it. A caller that releases it while something is in progress wakes the progress thread.
// While nobody holds it, the progress thread is parked on `idle_word_`, where any thread that adds
// work wakes it.
//
// Handles keep the lock alive beyond the engine; it is then closed, and nobody can acquire it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/clock.h"
#include "core/counter.h"
#include "core/futex.h"
#include "onehost/wake.h"

namespace rueda {

struct HandleState;

class ProgressLock {
 public:
  // Kinds of work there may be.
  enum Work : std::uint32_t {
    queued = 1,      // commands
    readable = 2,    // watched descriptors
    unfinished = 4,  // something is in progress or has a deadline
  };

  // Makes progress until the handle is done, the deadline, or a signal. Called with the lock, and
  // releases it. May return `changed` although the handle is not done, because the engine ends.
  using Drive = std::function<FutexWake(const HandleState&, std::optional<Time>)>;

  // `spin_iterations`: how often a caller checks whether the progress thread yields the lock to it.
  ProgressLock(Drive drive, int spin_iterations)
      : drive_(std::move(drive)), spin_iterations_(spin_iterations) {}
  ProgressLock(const ProgressLock&) = delete;
  ProgressLock& operator=(const ProgressLock&) = delete;

  // --- For anyone

  // Waits for the handle, making progress if possible.
  FutexWake wait(const HandleState& handle, std::optional<Time> deadline);
  // Reports work: wakes the owner, which sleeps at `target`, or else the progress thread.
  void notify(Work work, const WakeTarget& target);
  [[nodiscard]] bool has(Work work) const { return (work_.load() & work) != 0; }
  [[nodiscard]] bool has_work() const { return work_.load() != 0; }
  // From now on, nobody can acquire the lock. Async-signal-safe.
  void close() { owner_.store(Owner::closed); }

  // --- For callers

  [[nodiscard]] bool acquire_as_caller();
  // Only if nobody has it and there is no work: for a caller that does not step. It gives the lock
  // back with release_idle(), or continues like any owner.
  [[nodiscard]] bool acquire_idle();
  // Work that came meanwhile is left to the progress thread.
  void release_idle();

  // --- For the progress thread

  [[nodiscard]] bool acquire_as_thread();
  // The thread, which holds the lock, is about to sleep: callers may take the lock meanwhile.
  void mark_parked() { owner_.store(Owner::parked); }
  // After that sleep: whether the thread still holds the lock.
  [[nodiscard]] bool reclaim();
  [[nodiscard]] bool is_wanted_by_caller() const { return waiting_callers_.load() > 0; }
  // Without the lock: sleeps until there may be work that nobody does, or until `deadline`; false
  // if there is some already.
  bool park(Counter& sleeps, std::optional<Time> deadline);

  // --- For the owner

  // Marks work as done (clear) or known to exist (set).
  void clear(Work work) { work_.fetch_and(~static_cast<std::uint32_t>(work)); }
  void set(Work work) { work_.fetch_or(work); }
  // If work is left, wakes the progress thread, which may sleep at `target`.
  void release(const WakeTarget& target);
  // The progress thread gives the lock to a caller that waits for it.
  void yield_to_caller() { owner_.store(Owner::none); }

 private:
  // `parked`: held by the progress thread, which sleeps.
  enum class Owner : std::uint32_t { none, parked, progress_thread, caller, closed };

  [[nodiscard]] bool acquire_when_yielded(const HandleState& handle);

  const Drive drive_;
  const int spin_iterations_;
  std::atomic<Owner> owner_{Owner::none};
  std::atomic<std::uint32_t> work_{0};
  std::atomic<int> waiting_callers_{0};
  WakeWord idle_word_{};
};

}  // namespace rueda
