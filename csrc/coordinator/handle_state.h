// What a Handle points to: written once by the thread that drives the engine; any thread may wait
// for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/clock.h"
#include "core/fork.h"
#include "core/futex.h"
#include "core/status.h"
#include "rueda/rueda.h"

namespace rueda {

class FlightRecorder;
class ProgressLock;
class CompletionInbox;
class DeviceEvent;
class DeviceReduction;

// Result of an operation: the caller's output, and what only Rueda itself uses.
struct OperationOutput : Output {
  int process_set = -1;                        // add_process_set: the number of the new set
  int persistent = -1;                         // persistent operation: its number within the set
  std::shared_ptr<DeviceEvent> finished;       // on a GPU: when the result is ready
  std::shared_ptr<DeviceReduction> reduction;  // persistent operation on a GPU: what starts it
};

// The operation's entry in the flight recorder, or none. The recorder outlives it.
struct FlightEntry {
  FlightRecorder* recorder = nullptr;
  std::uint64_t number = 0;
};

struct HandleState {
  // Without a lock, for what only other threads complete: waiting then means sleeping.
  explicit HandleState(std::shared_ptr<ProgressLock> lock = nullptr)
      : progress_lock(std::move(lock)) {}

  // Published by `done`; read only after it.
  Status status;
  OperationOutput output;

  [[nodiscard]] bool is_done() const { return done.load(std::memory_order_acquire) != 0; }
  // Whether a thread is waiting for it now.
  [[nodiscard]] bool is_awaited() const { return waiting.load(std::memory_order_relaxed) > 0; }

  // Marks that a thread waits for it, while this object exists.
  class Waiting {
   public:
    explicit Waiting(const HandleState& state) : state_(state) { state_.waiting.fetch_add(1); }
    ~Waiting() { state_.waiting.fetch_sub(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    const HandleState& state_;
  };

  // Called once, by the thread that drives the engine (or the one that refused the submission).
  void complete(Status result, OperationOutput result_output = {});

  // Waits until done (FutexWake::changed), until the deadline (timeout), or until a signal handler
  // has run while this thread slept (interrupted). Drives the engine meanwhile, unless another
  // thread does.
  FutexWake wait(std::optional<Time> deadline) const;
  // The same, but ignores signal handlers; false at the deadline.
  bool outlast(std::optional<Time> deadline = std::nullopt) const;
  // The same without driving.
  FutexWake sleep(std::optional<Time> deadline) const;

  // Puts `token` into the inbox once this is done, or at once if it already is. Only one watcher:
  // false if there is another.
  bool watch(std::shared_ptr<CompletionInbox> inbox, std::uint64_t token);

  const std::shared_ptr<ProgressLock> progress_lock;
  const int generation = fork_generation();  // fork generation of the process that completes it
  FlightEntry flight;                        // set and read by the thread that drives the engine
  std::atomic<std::uint32_t> done{0};
  mutable std::atomic<int> waiting{0};
  mutable std::atomic<int> sleeping{0};  // those that must be woken

 private:
  struct Watcher {
    std::shared_ptr<CompletionInbox> inbox;
    std::uint64_t token = 0;
  };
  void tell_watcher();

  // `watched_` says that the watcher may be read; the thread that sets `told_` first notifies it.
  Watcher watcher_;
  std::atomic<bool> claimed_{false};
  std::atomic<bool> watched_{false};
  std::atomic<bool> told_{false};
};

}  // namespace rueda
