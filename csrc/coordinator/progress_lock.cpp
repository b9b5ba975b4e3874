#include "coordinator/progress_lock.h"

#include "coordinator/backoff.h"
#include "coordinator/handle_state.h"

namespace rueda {

FutexWake ProgressLock::wait(const HandleState& handle, std::optional<Time> deadline) {
  if (acquire_as_caller() || acquire_when_yielded(handle)) {
    const FutexWake wake = drive_(handle, deadline);
    if (wake != FutexWake::changed || handle.is_done()) return wake;
  }
  return handle.sleep(deadline);
}

bool ProgressLock::acquire_as_caller() {
  for (const Owner free : {Owner::none, Owner::parked}) {
    Owner expected = free;
    if (owner_.compare_exchange_strong(expected, Owner::caller)) return true;
  }
  return false;
}

bool ProgressLock::acquire_idle() {
  Owner expected = Owner::none;
  return work_.load(std::memory_order_relaxed) == 0 &&
         owner_.compare_exchange_strong(expected, Owner::caller);
}

void ProgressLock::release_idle() {
  owner_.store(Owner::none);
  if (work_.load() != 0) wake(idle_word_);
}

// The progress thread yields the lock between two iterations of its loop; a caller waits for that
// about as long as sleeping and being woken would take.
bool ProgressLock::acquire_when_yielded(const HandleState& handle) {
  if (owner_.load() != Owner::progress_thread) return false;
  waiting_callers_.fetch_add(1);
  bool acquired = false;
  for (int spin = 0; spin < spin_iterations_ && !acquired && !handle.is_done(); ++spin) {
    pause_processor();
    acquired = acquire_as_caller();
  }
  waiting_callers_.fetch_sub(1);
  // The lock may just have been yielded, and the progress thread may have parked.
  if (!acquired && owner_.load() == Owner::none) wake(idle_word_);
  return acquired;
}

void ProgressLock::notify(Work work, const WakeTarget& target) {
  set(work);
  wake(target);
  if (owner_.load() == Owner::none) wake(idle_word_);
}

bool ProgressLock::acquire_as_thread() {
  Owner expected = Owner::none;
  return owner_.compare_exchange_strong(expected, Owner::progress_thread);
}

bool ProgressLock::reclaim() {
  Owner expected = Owner::parked;
  return owner_.compare_exchange_strong(expected, Owner::progress_thread);
}

bool ProgressLock::park(Counter& sleeps, std::optional<Time> deadline) {
  Sleeper sleeper(idle_word_, Sleeper::On::word, false);
  if (owner_.load() == Owner::none && !is_wanted_by_caller() && work_.load() != 0) return false;
  sleeps.add(1);
  (void)sleeper.sleep(deadline);
  return true;
}

// The target belongs to the engine, which may be gone once the lock is free. A progress thread that
// still sleeps there, because a caller took the lock from it, parks on idle_word_ when woken.
void ProgressLock::release(const WakeTarget& target) {
  if (work_.load() != 0) wake(target);
  owner_.store(Owner::none);
  if (work_.load() != 0) wake(idle_word_);
}

}  // namespace rueda
