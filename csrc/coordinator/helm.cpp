#include "coordinator/helm.h"

#include "coordinator/handle_state.h"
#include "coordinator/patience.h"

namespace rueda {

FutexWake Helm::wait(const HandleState& handle, std::optional<Time> deadline) {
  if (take_as_caller() || take_when_offered(handle)) {
    const FutexWake wake = drive_(handle, deadline);
    if (wake != FutexWake::changed || handle.is_done()) return wake;
  }
  return handle.sleep(deadline);
}

bool Helm::take_as_caller() {
  for (const Role free : {Role::nobody, Role::dozing}) {
    Role expected = free;
    if (role_.compare_exchange_strong(expected, Role::caller)) return true;
  }
  return false;
}

// The engine's thread lets callers have the helm between two looks; a caller waits for that as long
// as sleeping and being woken would take.
bool Helm::take_when_offered(const HandleState& handle) {
  if (role_.load() != Role::thread) return false;
  wanting_.fetch_add(1);
  bool taken = false;
  for (int look = 0; look < patience_ && !taken && !handle.is_done(); ++look) {
    pause_processor();
    taken = take_as_caller();
  }
  wanting_.fetch_sub(1);
  // It may just have been offered, and the engine's thread have sat down.
  if (!taken && role_.load() == Role::nobody) wake(chair_);
  return taken;
}

void Helm::notify(Work work, WakeWord& word) {
  set(work);
  wake(word);
  if (role_.load() == Role::nobody) wake(chair_);
}

bool Helm::take_as_thread() {
  Role expected = Role::nobody;
  return role_.compare_exchange_strong(expected, Role::thread);
}

bool Helm::wake_from_doze() {
  Role expected = Role::dozing;
  return role_.compare_exchange_strong(expected, Role::thread);
}

bool Helm::sit(Counter& sleeps) {
  Sleeper sleeper(chair_);
  if (role_.load() == Role::nobody && !is_wanted() && work_.load() != 0) return false;
  sleeps.add(1);
  (void)sleeper.sleep(std::nullopt);
  return true;
}

// The word belongs to the engine, which may be gone once the helm is free. A thread that still
// sleeps there, because a caller took the helm from it, sits down in its chair when it is woken.
void Helm::leave(WakeWord& word) {
  if (work_.load() != 0) wake(word);
  role_.store(Role::nobody);
  if (work_.load() != 0) wake(chair_);
}

}  // namespace rueda
