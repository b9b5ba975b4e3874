// Makes work progress: in a thread of its own, or in a caller that waits for a handle anyway.
// Whoever holds the progress lock steps, spins for a moment where something is expected, and then
// sleeps: on the descriptors where others are awaited through these, elsewhere on one futex word,
// while a second thread watches the descriptors and wakes the owner.
#pragma once

#include <poll.h>
#include <sched.h>

#include <array>
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
#include "core/status.h"
#include "core/unique_fd.h"
#include "onehost/host_group.h"
#include "onehost/placement.h"
#include "onehost/wake.h"

namespace rueda {

class Progress {
 public:
  // What progresses. Called by the owner of the lock only.
  class Work {
   public:
    // Carries out what the application has asked for; returns whether there was anything.
    virtual bool take_commands(Time now) = 0;
    // Which of the watched descriptors have been seen to be readable since the last call.
    struct Readable {
      bool first = false;
      bool second = false;
    };
    // Moves all that can move without blocking; returns whether anything did.
    virtual bool advance(Time now, Readable readable) = 0;
    // Whether something may happen so soon that it is worth spinning for.
    [[nodiscard]] virtual bool is_active() const = 0;
    // When to step though nothing happens.
    [[nodiscard]] virtual std::optional<Time> next_deadline() const = 0;
    // Whether no wake-up announces progress, so that steps have to be repeated.
    [[nodiscard]] virtual bool requires_polling() const = 0;
    // Whether what is under way is told by the second descriptor: by a network.
    [[nodiscard]] virtual bool awaits_network() const = 0;
    // Whether messages on the first descriptor are expected.
    [[nodiscard]] virtual bool awaits_messages() const = 0;
    // The owner is about to sleep.
    virtual void prepare_to_sleep() = 0;
    // The owner is about to sleep, also on the second descriptor where that is needed; `refused`:
    // there is something to do. disarm() follows where it was armed, and where it was readable.
    enum class Arming : std::uint8_t { not_needed, armed, refused };
    virtual Arming arm() = 0;
    virtual void disarm() = 0;
    // Whether the progress thread ends, after which it calls wind_up().
    [[nodiscard]] virtual bool may_stop(Time now) const = 0;
    virtual void wind_up() = 0;
    // A step has thrown.
    virtual void fail_internal(const std::exception& error) = 0;

   protected:
    ~Work() = default;
  };

  // `world_size_here`: the ranks of this host. All are referred to.
  Progress(Work& work, const HostGroup& host, int world_size_here, Metrics& metrics);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts to watch the descriptors (or -1), then the thread. Once.
  Status start(int first_fd, int second_fd);
  [[nodiscard]] bool is_running() const { return thread_.joinable(); }
  // Waits for the end of the thread, which comes when the work may stop.
  void join() { thread_.join(); }

  // Handles that are waited for with it make progress meanwhile. Any thread.
  [[nodiscard]] const std::shared_ptr<ProgressLock>& lock() const { return lock_; }
  // There are commands. Any thread.
  void notify() { lock_->notify(ProgressLock::queued, target_); }

  // --- For callers that hold the lock while they hand in work

  [[nodiscard]] bool acquire();
  FutexWake drive_until_done(const HandleState& handle, std::optional<Time> deadline);
  void release();

  // For a caller that is done at once if the others come within a moment: acquires the lock only
  // where there is no work.
  [[nodiscard]] bool acquire_idle() { return lock_->acquire_idle(); }
  // Asks for a moment whether it is over, in which it may hold what others need: a few
  // microseconds.
  template <class IsOver>
  [[nodiscard]] bool spin_a_moment(const IsOver& is_over) const {
    for (int left = moment_; left > 0; --left) {
      if (is_over()) return true;
      pause_processor();
    }
    return is_over();
  }
  // The same after that, for a caller who holds nothing that others need: where the ranks share
  // processors, gives this one away in between, as long as there is no work.
  template <class IsOver>
  [[nodiscard]] bool yield_a_moment(const IsOver& is_over) const {
    for (int left = yields_; left > 0 && !lock_->has_work(); --left) {
      sched_yield();
      if (is_over()) return true;
    }
    return false;
  }
  void release_idle() { lock_->release_idle(); }
  // Instead of releasing it: goes on as if it had been acquired by acquire().
  void go_on() { take_over(); }

  // --- For the work

  // Nothing is watched any more.
  void stop_watching() { watcher_.stop(); }

 private:
  struct Slept {
    FutexWake wake = FutexWake::changed;
    bool really = false;   // not only stepped again
    bool has_lock = true;  // no caller has taken it meanwhile
  };

  // After a step that has moved something: whether to step again at once.
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
  [[nodiscard]] bool is_unfinished(Time now) const;
  [[nodiscard]] bool is_due(Time now) const;

  Work& work_;
  Metrics& metrics_;
  const bool oversubscribed_;   // the ranks of this host share processors
  const int moment_;            // how often a caller asks that has yet to begin to wait
  const int yields_;            // and that has just begun
  Placement placement_;         // of the owner of the lock
  const bool woken_by_others_;  // of this host, who leave fencing to sleepers
  WakeWord own_word_{};
  UniqueFd own_event_;
  WakeTarget target_;  // where the owner sleeps; where the others of this host can reach it
  std::array<int, 2> descriptors_{-1, -1};
  bool event_is_full_ = false;  // as the owner has seen
  const std::shared_ptr<ProgressLock> lock_;
  Watcher watcher_;
  bool armed_ = false;            // the second descriptor, for a sleep
  bool second_readable_ = false;  // as the owner has seen
  int polls_in_vain_ = 0;         // in a row
  bool woken_ = false;            // the progress thread, which has not stepped yet
  NetworkSpinning network_spinning_;
  std::thread thread_;
};

}  // namespace rueda
