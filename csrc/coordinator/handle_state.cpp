#include "coordinator/handle_state.h"

#include "coordinator/completion_queue.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/progress_lock.h"

namespace rueda {

void HandleState::complete(Status result, OperationOutput result_output) {
  if (flight.recorder != nullptr) flight.recorder->end(flight.number, result);
  status = std::move(result);
  output = std::move(result_output);
  done.store(1);
  if (sleeping.load() > 0) futex_wake_all(done);
  if (watched_.load()) tell_watcher();
}

// Either complete() sees the watcher, or the watcher sees that this is done.
bool HandleState::watch(std::shared_ptr<CompletionInbox> inbox, std::uint64_t token) {
  if (claimed_.exchange(true)) return false;
  watcher_ = {std::move(inbox), token};
  watched_.store(true);
  if (done.load() != 0) tell_watcher();
  return true;
}

void HandleState::tell_watcher() {
  if (told_.exchange(true)) return;
  watcher_.inbox->put(watcher_.token);
}

FutexWake HandleState::wait(std::optional<Time> deadline) const {
  if (is_done()) return FutexWake::changed;
  const Waiting here(*this);
  return progress_lock ? progress_lock->wait(*this, deadline) : sleep(deadline);
}

bool HandleState::outlast(std::optional<Time> deadline) const {
  FutexWake wake = FutexWake::interrupted;
  while (wake == FutexWake::interrupted) wake = wait(deadline);
  return wake == FutexWake::changed;
}

FutexWake HandleState::sleep(std::optional<Time> deadline) const {
  sleeping.fetch_add(1);
  FutexWake wake = FutexWake::changed;
  while (!is_done() && wake == FutexWake::changed) wake = futex_wait(done, 0, deadline);
  sleeping.fetch_sub(1);
  return wake == FutexWake::timeout && is_done() ? FutexWake::changed : wake;
}

}  // namespace rueda
