// How the engine makes progress: in its own thread, or in a caller that waits for a handle anyway.
#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "coordinator/engine.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr double farewell_seconds = 5;

// How long to spin where every rank has a processor. The progress thread takes it from the
// application, and gives up soon; a caller has nothing else to do.
constexpr Duration thread_spinning = std::chrono::microseconds(5);
constexpr Duration caller_spinning = std::chrono::microseconds(100);

// A transport that requires polling: polls without progress before the owner pauses, and for how
// long.
constexpr int polling_spins = 20000;
constexpr Duration polling_pause = std::chrono::milliseconds(1);

// Steps after a handle is done, for what its end has set going.
constexpr int final_steps = 3;

std::optional<Time> earlier(std::optional<Time> left, std::optional<Time> right) {
  if (!left || !right) return left ? left : right;
  return std::min(*left, *right);
}

}  // namespace

// --- The progress thread

void Engine::run() {
  pthread_setname_np(pthread_self(), "rueda");
  for (;;) {
    if (progress_lock_->acquire_as_thread()) {
      acquire();
      if (drive()) break;
    }
    if (progress_lock_->park(metrics_.sleeps)) woken_ = true;
  }
  wind_up();
}

// Returns true, with the lock, at the end; false when the lock has been released, yielded or lost.
bool Engine::drive() {
  Backoff backoff(oversubscribed_, thread_spinning, placement_);
  try {
    for (;;) {
      const Time now = Clock::now();
      const bool due = woken_ && is_due(now);
      const bool moved = step(now);
      if (woken_ && !moved && !due) metrics_.idle_wakeups.add(1);
      woken_ = false;
      if (may_stop(now)) return true;
      if (progress_lock_->is_wanted_by_caller()) {
        yield_to_caller();
        return false;
      }
      if (moved) {
        backoff.renew();
        continue;
      }
      if (expects() && backoff.back_off(now)) continue;
      if (!is_unfinished(now)) {
        release();
        return false;
      }
      const Slept slept = sleep(std::nullopt, true);
      woken_ = slept.really;
      if (!slept.has_lock) return false;
      backoff.renew();
    }
  } catch (const std::exception& error) {
    fail_internal(error);
    return true;
  }
}

// --- A caller

FutexWake Engine::drive_as_caller(const HandleState& handle, std::optional<Time> deadline) {
  acquire();
  const FutexWake wake = drive_until_done(handle, deadline);
  release();
  return wake;
}

FutexWake Engine::drive_until_done(const HandleState& handle, std::optional<Time> deadline) {
  metrics_.driven_by_caller.add(1);
  Backoff backoff(oversubscribed_, caller_spinning, placement_);
  try {
    while (!handle.is_done()) {
      const Time now = Clock::now();
      if (deadline && now >= *deadline) return FutexWake::timeout;
      if (may_stop(now)) return FutexWake::changed;
      if (step(now)) {
        backoff.renew();
      } else if (!backoff.back_off(now)) {
        const Slept slept = sleep(deadline, false);
        if (slept.wake == FutexWake::interrupted) return slept.wake;
        if (slept.really) backoff.renew();
      }
    }
    for (int count = 0; count < final_steps && step(Clock::now()); ++count) continue;
  } catch (const std::exception& error) {
    fail_internal(error);
  }
  return FutexWake::changed;
}

// --- By the owner of the progress lock

// A driver from whom the lock was taken while it slept has left the transport armed.
void Engine::acquire() {
  progress_lock_->clear(ProgressLock::unfinished);
  disarm();
}

void Engine::release() {
  if (is_unfinished(Clock::now())) progress_lock_->set(ProgressLock::unfinished);
  if (watcher_.has_seen()) watcher_.rearm();
  progress_lock_->release(*word_);
}

void Engine::yield_to_caller() {
  progress_lock_->set(ProgressLock::unfinished);
  if (watcher_.has_seen()) watcher_.rearm();
  progress_lock_->yield_to_caller();
}

bool Engine::step(Time now) {
  bool moved = take_commands(now);
  moved = poll_control() || moved;
  if (!failure_.ok()) return moved;
  if (uses_transport()) moved = world_.transport->progress() || moved;
  for (auto set = sets_.begin(); set != sets_.end();) {
    moved = set->second->step(now) || moved;
    if (!failure_.ok()) return true;
    if (set->second->closed() && !messages_.is_closed(set->first)) {
      messages_.close(set->first, set->second->closing(), now, seconds(options_.shutdown_timeout));
    }
    const bool gone =
        set->second->closed() && !set->second->in_flight() && !process_sets_.find(set->first);
    if (gone) forget_set(set->first);
    set = gone ? sets_.erase(set) : std::next(set);
  }
  moved = messages_.step(now) || moved;
  if (Status status = devices_->watch(now); !status.ok()) {
    fail(status);
    return true;
  }
  if (moved) polls_in_vain_ = 0;
  const Duration timeout = seconds(options_.transfer_timeout);
  for (const auto& [id, set] : sets_) {
    if (Status status = set->broken(now, timeout); !status.ok()) {
      fail(status);
      return true;
    }
  }
  return moved;
}

// The control lane is asked when its descriptor was seen to be readable, or when a message is
// expected at any moment.
bool Engine::poll_control() {
  const bool readable = progress_lock_->has(ProgressLock::readable);
  if (readable) progress_lock_->clear(ProgressLock::readable);
  if (readable && watcher_.has_seen_second()) world_.transport->disarm();  // takes late rings
  return (readable || negotiates()) && world_.control->progress();
}

// Looks a last time after the sleep has been announced, so that nothing is missed. The progress
// thread can lose the lock to a caller meanwhile.
Engine::Slept Engine::sleep(std::optional<Time> until, bool as_thread) {
  if (must_be_polled()) return back_off_polling(as_thread);
  polls_in_vain_ = 0;
  timeline_.flush();
  if (watcher_.has_seen()) watcher_.rearm();
  Sleeper sleeper(*word_);
  const Time now = Clock::now();
  if (step(now) || watcher_.has_seen() || may_stop(now)) return {};
  if (as_thread && progress_lock_->is_wanted_by_caller()) return {};
  if (uses_transport()) {
    armed_ = world_.transport->arm();
    if (!armed_) return {};
  }
  return park(sleeper, earlier(until, next_deadline()), as_thread);
}

// For a transport that requires polling. It is waited for with the processor given away to
// whoever wants it, and after a long wait with short pauses, from which a control message or a
// submission still wakes.
Engine::Slept Engine::back_off_polling(bool as_thread) {
  // That another rank has failed must be heard long before the transfer timeout.
  if (watcher_.has_seen()) watcher_.rearm();
  if (++polls_in_vain_ < polling_spins) {
    sched_yield();
    return {};
  }
  Sleeper sleeper(*word_);
  if (progress_lock_->has(ProgressLock::queued) || progress_lock_->has(ProgressLock::readable))
    return {};
  Slept slept = park(sleeper, Clock::now() + polling_pause, as_thread);
  slept.really = false;
  return slept;
}

Engine::Slept Engine::park(Sleeper& sleeper, std::optional<Time> deadline, bool as_thread) {
  Slept slept;
  slept.really = true;
  if (!as_thread) {
    metrics_.caller_sleeps.add(1);
    slept.wake = sleeper.sleep(deadline);
  } else {
    metrics_.sleeps.add(1);
    progress_lock_->mark_parked();
    slept.wake = sleeper.sleep(deadline);
    slept.has_lock = progress_lock_->reclaim();
  }
  if (slept.has_lock) disarm();
  return slept;
}

void Engine::disarm() {
  if (!armed_) return;
  armed_ = false;
  world_.transport->disarm();
}

bool Engine::in_flight() const {
  return messages_.in_flight() || std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
           return set.second->in_flight();
         });
}

bool Engine::uses_transport() const {
  return failure_.ok() && (messages_.uses_transport() ||
                           std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
                             return set.second->uses_transport();
                           }));
}

// Whether there is something that can only be asked, again and again, whether it goes on.
bool Engine::must_be_polled() const {
  if (uses_transport() && world_.transport->wait_fd() < 0) return true;
  return failure_.ok() && std::any_of(sets_.begin(), sets_.end(),
                                      [](const auto& set) { return set.second->must_be_polled(); });
}

bool Engine::negotiates() const {
  return messages_.expects() || std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
           return set.second->negotiates();
         });
}

// Whether something may happen so soon that it is worth spinning for.
bool Engine::expects() const {
  return failure_.ok() && in_flight();
}

// Whether somebody has to drive though nothing has happened.
bool Engine::is_unfinished(Time now) const {
  return (failure_.ok() && in_flight()) || next_deadline() || may_stop(now);
}

bool Engine::is_due(Time now) const {
  const auto deadline = next_deadline();
  return deadline && now >= *deadline;
}

std::optional<Time> Engine::next_deadline() const {
  std::optional<Time> earliest = leaving_until_;
  if (!failure_.ok()) return earliest;
  earliest = earlier(earliest, messages_.next_deadline());
  earliest = earlier(earliest, devices_->next_look());
  for (const auto& [id, set] : sets_) {
    earliest = earlier(earliest, set->next_deadline());
    const auto moved = set->oldest_move();
    if (moved && options_.transfer_timeout > 0) {
      earliest = earlier(earliest, *moved + seconds(options_.transfer_timeout));
    }
  }
  return earliest;
}

// --- The end

bool Engine::may_stop(Time now) const {
  if (stopping_) return true;
  if (!leaving_until_) return false;
  if (!failure_.ok() || now >= *leaving_until_) return true;
  return is_over();
}

// No memory for a message, say: without this rank the others cannot go on, and they shall know why.
void Engine::fail_internal(const std::exception& error) {
  stopping_ = true;
  fail(Status(
      ErrorCode::internal,
      str("the coordinator of ", topology().describe(topology().rank), " failed: ", error.what()),
      topology().rank));
}

// By the progress thread, which keeps the lock.
void Engine::wind_up() {
  watcher_.stop();
  std::vector<Command> commands;
  Status reason = failure_;
  {
    const std::lock_guard lock(queue_mutex_);
    accepting_ = false;
    if (refusal_.ok()) refusal_ = Status(ErrorCode::shutdown, "this rank has shut down");
    if (reason.ok()) reason = refusal_;
    commands.swap(queue_);
  }
  if (in_flight()) {
    // The others count on what is in flight: to them this is no good-bye, but a loss.
    fail(Status(ErrorCode::peer_lost,
                str(topology().describe(topology().rank), " shut down with batches in flight"),
                topology().rank));
    reason = failure_;
  }
  if (world_.host.memory()) world_.host.memory()->give_up();
  for (const auto& [id, set] : sets_) set->fail_all(reason);
  messages_.leave_all();
  messages_.fail_all(reason);
  for (const Command& command : commands) refuse(command, reason);
  const Status closed = world_.control->close(Clock::now() + seconds(farewell_seconds));
  if (!closed.ok()) log(LogLevel::debug, "closing the control lane: ", closed.to_string());
  devices_->close();
  progress_lock_->close();
}

}  // namespace rueda
