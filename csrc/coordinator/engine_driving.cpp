// How the engine is driven: by its own thread, or by a caller that waits for a handle anyway.
#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "coordinator/engine.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr double farewell_seconds = 5;

// How long to spin where every rank has a processor. The engine's own thread takes it from the
// application, and gives up soon; a caller has nothing else to do.
constexpr Duration thread_spinning = std::chrono::microseconds(5);
constexpr Duration caller_spinning = std::chrono::microseconds(100);

// A transport that can only be polled: looks in vain before the driver naps, and for how long.
constexpr int polling_patience = 20000;
constexpr Duration nap_length = std::chrono::milliseconds(1);

// Looks after a handle is done, for what its end has set going.
constexpr int last_looks = 3;

std::optional<Time> earlier(std::optional<Time> left, std::optional<Time> right) {
  if (!left || !right) return left ? left : right;
  return std::min(*left, *right);
}

}  // namespace

// --- The engine's own thread

void Engine::run() {
  pthread_setname_np(pthread_self(), "rueda");
  for (;;) {
    if (helm_->take_as_thread()) {
      take_up();
      if (drive()) break;
    }
    if (helm_->sit(metrics_.sleeps)) woken_ = true;
  }
  wind_up();
}

// Returns true, with the helm, at the end; false when the helm is left, offered or lost.
bool Engine::drive() {
  Patience patience(crowded_, thread_spinning, placement_);
  try {
    for (;;) {
      const Time now = Clock::now();
      const bool due = woken_ && is_due(now);
      const bool moved = step(now);
      if (woken_ && !moved && !due) metrics_.idle_wakeups.add(1);
      woken_ = false;
      if (may_stop(now)) return true;
      if (helm_->is_wanted()) {
        offer();
        return false;
      }
      if (moved) {
        patience.renew();
        continue;
      }
      if (expects() && patience.look_again(now)) continue;
      if (!is_unfinished(now)) {
        leave();
        return false;
      }
      const Slept slept = sleep(std::nullopt, true);
      woken_ = slept.really;
      if (!slept.has_helm) return false;
      patience.renew();
    }
  } catch (const std::exception& error) {
    crash(error);
    return true;
  }
}

// --- A caller

FutexWake Engine::drive_as_caller(const HandleState& handle, std::optional<Time> deadline) {
  take_up();
  const FutexWake wake = drive_until_done(handle, deadline);
  leave();
  return wake;
}

FutexWake Engine::drive_until_done(const HandleState& handle, std::optional<Time> deadline) {
  metrics_.driven_by_caller.add(1);
  Patience patience(crowded_, caller_spinning, placement_);
  try {
    while (!handle.is_done()) {
      const Time now = Clock::now();
      if (deadline && now >= *deadline) return FutexWake::timeout;
      if (may_stop(now)) return FutexWake::changed;
      if (step(now)) {
        patience.renew();
      } else if (!patience.look_again(now)) {
        const Slept slept = sleep(deadline, false);
        if (slept.wake == FutexWake::interrupted) return slept.wake;
        if (slept.really) patience.renew();
      }
    }
    for (int look = 0; look < last_looks && step(Clock::now()); ++look) continue;
  } catch (const std::exception& error) {
    crash(error);
  }
  return FutexWake::changed;
}

// --- Whoever has the helm

// A driver from whom the helm was taken while it slept has left the transport armed.
void Engine::take_up() {
  helm_->clear(Helm::unfinished);
  disarm();
}

void Engine::leave() {
  if (is_unfinished(Clock::now())) helm_->set(Helm::unfinished);
  if (watcher_.has_seen()) watcher_.rearm();
  helm_->leave(*word_);
}

void Engine::offer() {
  helm_->set(Helm::unfinished);
  if (watcher_.has_seen()) watcher_.rearm();
  helm_->offer();
}

bool Engine::step(Time now) {
  bool moved = take_commands(now);
  moved = hear() || moved;
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
  if (moved) naps_ = 0;
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
bool Engine::hear() {
  const bool readable = helm_->has(Helm::readable);
  if (readable) helm_->clear(Helm::readable);
  if (readable && watcher_.has_seen_second()) world_.transport->disarm();  // takes late rings
  return (readable || negotiates()) && world_.control->progress();
}

// Looks a last time after the sleep has been announced, so that nothing is missed. The engine's
// thread can lose the helm to a caller meanwhile.
Engine::Slept Engine::sleep(std::optional<Time> until, bool as_thread) {
  if (must_be_polled()) return nap(as_thread);
  naps_ = 0;
  timeline_.flush();
  if (watcher_.has_seen()) watcher_.rearm();
  Sleeper sleeper(*word_);
  const Time now = Clock::now();
  if (step(now) || watcher_.has_seen() || may_stop(now)) return {};
  if (as_thread && helm_->is_wanted()) return {};
  if (uses_transport()) {
    armed_ = world_.transport->arm();
    if (!armed_) return {};
  }
  return rest(sleeper, earlier(until, next_deadline()), as_thread);
}

// For a transport that can only be polled. It is waited for with the processor given away to
// whoever wants it, and after a long wait with short naps, from which a control message or a
// submission still wakes.
Engine::Slept Engine::nap(bool as_thread) {
  // That another rank has failed must be heard long before the patience is at its end.
  if (watcher_.has_seen()) watcher_.rearm();
  if (++naps_ < polling_patience) {
    sched_yield();
    return {};
  }
  Sleeper sleeper(*word_);
  if (helm_->has(Helm::queued) || helm_->has(Helm::readable)) return {};
  Slept slept = rest(sleeper, Clock::now() + nap_length, as_thread);
  slept.really = false;
  return slept;
}

Engine::Slept Engine::rest(Sleeper& sleeper, std::optional<Time> deadline, bool as_thread) {
  Slept slept;
  slept.really = true;
  if (!as_thread) {
    metrics_.caller_sleeps.add(1);
    slept.wake = sleeper.sleep(deadline);
  } else {
    metrics_.sleeps.add(1);
    helm_->doze();
    slept.wake = sleeper.sleep(deadline);
    slept.has_helm = helm_->wake_from_doze();
  }
  if (slept.has_helm) disarm();
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
void Engine::crash(const std::exception& error) {
  stopping_ = true;
  fail(Status(
      ErrorCode::internal,
      str("the coordinator of ", topology().describe(topology().rank), " failed: ", error.what()),
      topology().rank));
}

// By the engine's thread, which keeps the helm.
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
  helm_->close();
}

}  // namespace rueda
