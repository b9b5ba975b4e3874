// Makes progress on the work: in a thread of its own, or in a caller that is waiting for a handle
// anyway. The holder of the progress lock steps, spins for a moment if something is expected, and
// then sleeps: on the descriptors if it expects something from those, otherwise on one futex word,
// while a second thread watches the descriptors and wakes the owner.
#pragma once

#include <poll.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include "coordinator/backoff.h"
#include "coordinator/handle_state.h"
#include "coordinator/metrics.h"
#include "coordinator/network_spinning.h"
#include "coordinator/progress_lock.h"
#include "coordinator/watcher.h"
#include "core/clock.h"
#include "core/earlier.h"
#include "core/status.h"
#include "core/unique_fd.h"
#include "onehost/host_group.h"
#include "onehost/placement.h"
#include "onehost/wake.h"

namespace rueda {

class Progress {
 public:
  // The work. Called only by the owner of the lock.
  class Work {
   public:
    // Carries out the application's commands; returns whether there were any.
    virtual bool take_commands(Time now) = 0;
    // Which of the watched descriptors have become readable since the last call.
    struct Readable {
      bool first = false;
      bool second = false;
    };
    // Moves all that can move without blocking; returns whether anything did.
    virtual bool advance(Time now, Readable readable) = 0;
    // Whether something may happen so soon that it is worth spinning for.
    [[nodiscard]] virtual bool is_active() const = 0;
    // When to step even if nothing happens.
    struct Deadlines {
      std::optional<Time> step;    // for what is in progress
      std::optional<Time> report;  // what may be late: a report on what waits for an application

      [[nodiscard]] std::optional<Time> first() const { return earlier(step, report); }
    };
    [[nodiscard]] virtual Deadlines deadlines() const = 0;
    // Whether no wake-up announces progress, so that steps must be repeated.
    [[nodiscard]] virtual bool requires_polling() const = 0;
    // What is in flight that the second descriptor signals: on a network. `much` takes far longer
    // than waking up does, so that spinning gains nothing.
    enum class OnNetwork : std::uint8_t { nothing, little, much };
    [[nodiscard]] virtual OnNetwork awaits_network() const = 0;
    // Whether messages on the first descriptor are expected.
    [[nodiscard]] virtual bool awaits_messages() const = 0;
    // The owner is about to sleep.
    virtual void prepare_to_sleep() = 0;
    // The owner is about to sleep, also on the second descriptor if needed; `refused`: there is
    // something to do. disarm() follows if it was armed, and if it was readable.
    enum class Arming : std::uint8_t { not_needed, armed, refused };
    virtual Arming arm() = 0;
    virtual void disarm() = 0;
    // Whether the progress thread may end; it then calls wind_up().
    [[nodiscard]] virtual bool may_stop(Time now) const = 0;
    virtual void wind_up() = 0;
    // A step has thrown.
    virtual void fail_internal(const std::exception& error) = 0;

   protected:
    ~Work() = default;
  };

  // `world_size_here`: number of ranks on this host. Keeps references to all arguments.
  Progress(Work& work, const HostGroup& host, int world_size_here, Metrics& metrics);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts watching the descriptors (or -1), then starts the thread. Call once.
  Status start(int first_fd, int second_fd);
  [[nodiscard]] bool is_running() const { return thread_.joinable(); }
  // Waits for the thread, which ends when the work may stop.
  void join() { thread_.join(); }

  // A thread that waits for a handle with this lock makes progress meanwhile. Any thread.
  [[nodiscard]] const std::shared_ptr<ProgressLock>& lock() const { return lock_; }
  // There are commands. Any thread.
  void notify() { lock_->notify(ProgressLock::queued, target_); }

  // --- For callers that hold the lock while they submit work

  [[nodiscard]] bool acquire();
  FutexWake drive_until_done(const HandleState& handle, std::optional<Time> deadline);
  void release();

  // For a caller that is done at once if the other ranks arrive within a moment: acquires the lock
  // only if there is no work.
  [[nodiscard]] bool acquire_idle() { return lock_->acquire_idle(); }
  // Polls `is_over` for a few microseconds, during which the caller may hold what others need.
  template <class IsOver>
  [[nodiscard]] bool spin_a_moment(const IsOver& is_over) const {
    for (int left = moment_; left > 0; --left) {
      if (is_over()) return true;
      pause_processor();
    }
    return is_over();
  }
  // The same, after that, for a caller that holds nothing others need: if ranks share processors,
  // it yields the processor between polls, as long as there is no work.
  template <class IsOver>
  [[nodiscard]] bool yield_a_moment(const IsOver& is_over) const {
    for (int left = yields_; left > 0 && !lock_->has_work(); --left) {
      sched_yield();
      if (is_over()) return true;
    }
    return false;
  }
  void release_idle() { lock_->release_idle(); }
  // Instead of releasing it: continues as if acquired by acquire().
  void go_on() { take_over(); }

  // --- For the work

  // Ends the watching of descriptors.
  void stop_watching() { watcher_.stop(); }

 private:
  struct Slept {
    FutexWake wake = FutexWake::changed;
    bool really = false;   // did not just step again
    bool has_lock = true;  // no caller took it meanwhile
  };

  // After a step that moved something: whether to step again at once.
  [[nodiscard]] bool looks_again() const;
  [[nodiscard]] bool back_off(Backoff& backoff, Time now);
  void run();
  bool drive();
  void take_over();
  void yield_to_caller();
  bool step(Time now);
  Slept sleep(std::optional<Time> until, bool as_thread);
  Slept back_off_polling(bool as_thread);
  Slept park(Sleeper& sleeper, Sleeper::On on, std::optional<Time> deadline, bool as_thread);
  void empty_event();
  void disarm();
  void rearm_watcher();
  [[nodiscard]] bool is_unfinished(const Work::Deadlines& due, Time now) const;
  [[nodiscard]] bool is_due(Time now) const;

  Work& work_;
  Metrics& metrics_;
  const bool oversubscribed_;   // the ranks of this host share processors
  const int moment_;            // polls of a caller before it begins to wait
  const int yields_;            // and just after it has begun
  Placement placement_;         // of the owner of the lock
  const bool woken_by_others_;  // ranks of this host, which leave fencing to sleepers
  WakeWord own_word_{};
  UniqueFd own_event_;
  WakeTarget target_;  // where the owner sleeps and the other ranks of this host can reach it
  std::array<int, 2> descriptors_{-1, -1};
  bool event_is_full_ = false;  // as the owner has seen
  const std::shared_ptr<ProgressLock> lock_;
  Watcher watcher_;
  bool armed_ = false;            // the second descriptor, for a sleep
  bool second_readable_ = false;  // as the owner has seen
  int polls_in_vain_ = 0;         // in a row
  bool woken_ = false;            // the progress thread was, and has not stepped yet
  NetworkSpinning network_spinning_;
  // When the parked progress thread must make a report; Time::max(): never.
  std::atomic<Time> report_due_{Time::max()};
  std::thread thread_;
};

}  // namespace rueda
