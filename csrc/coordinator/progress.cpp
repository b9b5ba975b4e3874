#include "coordinator/progress.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/cancellation_off.h"
#include "core/signals_blocked.h"
#include "core/start_thread.h"

namespace rueda {

namespace {

// How long to spin if every rank has a processor of its own. The progress thread takes the
// processor from the application, and gives up soon; a caller has nothing else to do.
constexpr Duration thread_spinning = std::chrono::microseconds(5);
constexpr Duration caller_spinning = std::chrono::microseconds(100);

// How often a caller checks whether the progress thread yields the lock.
constexpr int lock_spins = 200;
constexpr int lock_spins_when_oversubscribed = 20;

// How often a caller polls for completion before it begins to wait, with pauses of some 15 to 45
// nanoseconds.
constexpr int moment_spins = 100;
constexpr int moment_spins_when_oversubscribed = 20;
constexpr int moment_yields_when_oversubscribed = 20;

// If polling is required: polls without progress before the owner pauses, and the pause.
constexpr int polling_spins = 20000;
constexpr Duration polling_pause = std::chrono::milliseconds(1);

// Steps after a handle is done, for what its completion has started.
constexpr int final_steps = 3;

bool share_processors(const HostGroup& host, int ranks) {
  return host.memory() ? host.memory()->is_oversubscribed() : is_oversubscribed(ranks);
}

// Duration::max(): no limit.
Duration spin_limit(Progress::Work::OnNetwork awaited, const NetworkSpinning& spinning) {
  using enum Progress::Work::OnNetwork;
  if (awaited == nothing) return Duration::max();
  return awaited == much ? Duration::zero() : spinning.limit();
}

bool is_alone(const HostGroup& host) {
  return !host.memory() || host.memory()->size() == 1;
}

// How long the progress thread sleeps without the lock. If a report is due already, a caller has
// the lock; it mostly makes the report itself.
std::optional<Time> end_of_park(Time report_due) {
  constexpr Duration least = std::chrono::milliseconds(100);
  if (report_due == Time::max()) return std::nullopt;
  return std::max(report_due, Clock::now() + least);
}

}  // namespace

Progress::Progress(Work& work, const HostGroup& host, int world_size_here, Metrics& metrics)
    : work_(work),
      metrics_(metrics),
      oversubscribed_(share_processors(host, world_size_here)),
      moment_(oversubscribed_ ? moment_spins_when_oversubscribed : moment_spins),
      yields_(oversubscribed_ ? moment_yields_when_oversubscribed : 0),
      placement_(host.memory()),
      woken_by_others_(!is_alone(host)),
      own_event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      target_(host.memory() ? host.memory()->wake_target(host.memory()->rank())
                            : WakeTarget{&own_word_, own_event_.get()}),
      lock_(std::make_shared<ProgressLock>(
          [this](const HandleState& handle, std::optional<Time> deadline) {
            const CancellationOff until_released;
            take_over();
            const FutexWake wake = drive_until_done(handle, deadline);
            release();
            return wake;
          },
          oversubscribed_ ? lock_spins_when_oversubscribed : lock_spins)) {}

Status Progress::start(int first_fd, int second_fd) {
  const SignalsBlocked blocked;
  if (target_.event < 0)
    return {ErrorCode::initialization, "no file descriptor is left for an event (ulimit -n)"};
  descriptors_ = {first_fd, second_fd};
  Status watches = watcher_.start(first_fd, second_fd,
                                  [this] { lock_->notify(ProgressLock::readable, target_); });
  if (!watches.ok()) return watches;
  return start_thread(thread_, [this] { run(); });
}

// --- The progress thread

void Progress::run() {
  pthread_setname_np(pthread_self(), "rueda");
  for (;;) {
    if (lock_->acquire_as_thread()) {
      take_over();
      if (drive()) break;
    }
    if (lock_->park(metrics_.sleeps, end_of_park(report_due_))) woken_ = true;
  }
  work_.wind_up();
  lock_->close();
}

// Returns true, with the lock, at the end; false if the lock was released, yielded or lost.
bool Progress::drive() {
  Backoff backoff(oversubscribed_, thread_spinning, placement_);
  try {
    for (;;) {
      const Time now = Clock::now();
      const bool due = woken_ && is_due(now);
      const bool moved = step(now);
      if (woken_ && !moved && !due) metrics_.idle_wakeups.add(1);
      woken_ = false;
      if (work_.may_stop(now)) return true;
      if (lock_->is_wanted_by_caller()) {
        yield_to_caller();
        return false;
      }
      if (moved) backoff.renew();
      if (moved ? looks_again() : work_.is_active() && back_off(backoff, now)) continue;
      if (!is_unfinished(work_.deadlines(), now)) {
        release();
        return false;
      }
      const Slept slept = sleep(std::nullopt, true);
      woken_ = slept.really;
      if (!slept.has_lock) return false;
      backoff.renew();
    }
  } catch (const std::exception& error) {
    work_.fail_internal(error);
    return true;
  }
}

// --- A caller

bool Progress::acquire() {
  if (!lock_->acquire_as_caller()) return false;
  take_over();
  return true;
}

FutexWake Progress::drive_until_done(const HandleState& handle, std::optional<Time> deadline) {
  metrics_.driven_by_caller.add(1);
  Backoff backoff(oversubscribed_, caller_spinning, placement_);
  try {
    while (!handle.is_done()) {
      const Time now = Clock::now();
      if (deadline && now >= *deadline) return FutexWake::timeout;
      if (work_.may_stop(now)) return FutexWake::changed;
      const bool moved = step(now);
      if (moved) backoff.renew();
      if (handle.is_done() || (moved ? looks_again() : back_off(backoff, now))) continue;
      const Slept slept = sleep(deadline, false);
      if (slept.wake == FutexWake::interrupted) return slept.wake;
      if (slept.really) backoff.renew();
    }
    for (int count = 0; count < final_steps && step(Clock::now()); ++count) continue;
  } catch (const std::exception& error) {
    work_.fail_internal(error);
  }
  return FutexWake::changed;
}

// --- The owner of the lock

// An owner that lost the lock while it slept has left the second descriptor armed.
void Progress::take_over() {
  lock_->clear(ProgressLock::unfinished);
  disarm();
}

void Progress::release() {
  const Work::Deadlines due = work_.deadlines();
  const Time report = due.report.value_or(Time::max());
  const Time known = report_due_;
  if (report != known) report_due_ = report;
  // The progress thread may be parked for longer than that.
  const bool is_sooner = report < known;
  if (is_sooner || is_unfinished(due, Clock::now())) lock_->set(ProgressLock::unfinished);
  rearm_watcher();
  lock_->release(target_);
}

void Progress::yield_to_caller() {
  lock_->set(ProgressLock::unfinished);
  rearm_watcher();
  lock_->yield_to_caller();
}

// If nobody spins, the last check before the sleep is enough.
bool Progress::looks_again() const {
  return spin_limit(work_.awaits_network(), network_spinning_) > Duration::zero();
}

bool Progress::back_off(Backoff& backoff, Time now) {
  backoff.limit(spin_limit(work_.awaits_network(), network_spinning_));
  return backoff.back_off(now);
}

bool Progress::step(Time now) {
  metrics_.looks.add(1);
  if (now >= report_due_.load(std::memory_order_relaxed)) report_due_ = Time::max();
  bool moved = false;
  if (lock_->has(ProgressLock::queued)) {
    lock_->clear(ProgressLock::queued);
    moved = work_.take_commands(now);
  }
  const bool readable = lock_->has(ProgressLock::readable);
  if (readable) lock_->clear(ProgressLock::readable);
  const bool seen_second = readable && watcher_.has_seen_second();
  if (seen_second) work_.disarm();  // consumes late wake-ups
  const bool second_readable = std::exchange(second_readable_, false) || seen_second;
  moved = work_.advance(now, {readable, second_readable}) || moved;
  if (moved) polls_in_vain_ = 0;
  return moved;
}

// Steps once more after the sleep has been announced, so that nothing is missed. The progress
// thread may lose the lock to a caller meanwhile.
Progress::Slept Progress::sleep(std::optional<Time> until, bool as_thread) {
  if (work_.requires_polling()) return back_off_polling(as_thread);
  polls_in_vain_ = 0;
  work_.prepare_to_sleep();
  const bool on_network = work_.awaits_network() != Work::OnNetwork::nothing;
  const auto on =
      on_network || work_.awaits_messages() ? Sleeper::On::descriptors : Sleeper::On::word;
  on == Sleeper::On::descriptors ? empty_event() : rearm_watcher();
  Sleeper sleeper(*target_.word, on, woken_by_others_);
  const Time now = Clock::now();
  if (step(now) || work_.may_stop(now)) return {};
  if (on == Sleeper::On::word && watcher_.has_seen()) return {};
  if (as_thread && lock_->is_wanted_by_caller()) return {};
  const Work::Arming arming = work_.arm();
  if (arming == Work::Arming::refused) return {};
  armed_ = arming == Work::Arming::armed;
  return park(sleeper, on, earlier(until, work_.deadlines().first()), as_thread);
}

// Yields the processor; after a long wait, pauses for short times, from which a control message or
// a submission still wakes the owner.
Progress::Slept Progress::back_off_polling(bool as_thread) {
  // The failure of another rank must be noticed long before the transfer timeout.
  rearm_watcher();
  if (++polls_in_vain_ < polling_spins) {
    sched_yield();
    return {};
  }
  Sleeper sleeper(*target_.word, Sleeper::On::word, woken_by_others_);
  if (lock_->has(ProgressLock::queued) || lock_->has(ProgressLock::readable)) return {};
  Slept slept = park(sleeper, Sleeper::On::word, Clock::now() + polling_pause, as_thread);
  slept.really = false;
  return slept;
}

Progress::Slept Progress::park(Sleeper& sleeper, Sleeper::On on, std::optional<Time> deadline,
                               bool as_thread) {
  Slept slept;
  slept.really = true;
  std::array<pollfd, 3> watched{pollfd{target_.event, POLLIN, 0},
                                pollfd{descriptors_[0], POLLIN, 0},
                                pollfd{descriptors_[1], POLLIN, 0}};
  (as_thread ? metrics_.sleeps : metrics_.caller_sleeps).add(1);
  // Pauses between polls say nothing about how soon the network answers, nor do long transfers.
  const bool learns = work_.awaits_network() == Work::OnNetwork::little;
  const std::optional<Time> network_since =
      learns && on != Sleeper::On::word ? std::optional(Clock::now()) : std::nullopt;
  if (as_thread) lock_->mark_parked();
  slept.wake = on == Sleeper::On::word ? sleeper.sleep(deadline) : sleeper.sleep(deadline, watched);
  if (as_thread) slept.has_lock = lock_->reclaim();
  if (!slept.has_lock) return slept;
  if (network_since) network_spinning_.learn_from(Clock::now() - *network_since);
  event_is_full_ = event_is_full_ || watched[0].revents != 0;
  if (watched[1].revents != 0) lock_->set(ProgressLock::readable);
  second_readable_ = second_readable_ || watched[2].revents != 0;
  disarm();
  return slept;
}

// Called only by the owner: a progress thread that has lost the lock may still sleep on the event,
// and must not consume what was meant for the owner.
void Progress::empty_event() {
  if (!std::exchange(event_is_full_, false)) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(target_.event, &count, sizeof count);
}

void Progress::disarm() {
  if (!armed_) return;
  armed_ = false;
  work_.disarm();
}

void Progress::rearm_watcher() {
  if (watcher_.has_seen()) watcher_.rearm();
}

// Whether a thread must own the lock even if nothing has happened.
bool Progress::is_unfinished(const Work::Deadlines& due, Time now) const {
  return due.step || work_.is_active() || work_.may_stop(now);
}

bool Progress::is_due(Time now) const {
  const auto first = work_.deadlines().first();
  return first && now >= *first;
}

}  // namespace rueda
