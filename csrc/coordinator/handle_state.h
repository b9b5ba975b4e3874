// What a Handle points to: written once by whoever drives the engine, waited for by anyone.
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

// What an operation comes to: what its caller gets, and what only Rueda asks for.
struct OperationOutput : Output {
  int process_set = -1;                        // add_process_set: the number of the new set
  int persistent = -1;                         // persistent operation: its number within the set
  std::shared_ptr<DeviceEvent> finished;       // on a GPU: when the result is there
  std::shared_ptr<DeviceReduction> reduction;  // persistent operation on a GPU: what starts it
};

// Where the recorder has the operation; nothing where none does. The recorder outlives it.
struct FlightEntry {
  FlightRecorder* recorder = nullptr;
  std::uint64_t number = 0;
};

struct HandleState {
  // Without a lock, for what only others complete: waiting is then sleeping.
  explicit HandleState(std::shared_ptr<ProgressLock> lock = nullptr)
      : progress_lock(std::move(lock)) {}

  // Published by `done`; read only after it.
  Status status;
  OperationOutput output;

  [[nodiscard]] bool is_done() const { return done.load(std::memory_order_acquire) != 0; }
  // Whether a thread waits for it at this moment.
  [[nodiscard]] bool is_awaited() const { return waiting.load(std::memory_order_relaxed) > 0; }

  // A thread waits for it while this lives.
  class Waiting {
   public:
    explicit Waiting(const HandleState& state) : state_(state) { state_.waiting.fetch_add(1); }
    ~Waiting() { state_.waiting.fetch_sub(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    const HandleState& state_;
  };

  // Called once, by whoever drives the engine (or by whoever refused the submission).
  void complete(Status result, OperationOutput result_output = {});

  // Waits until done (FutexWake::changed), the deadline (timeout) or a signal handler has run while
  // this thread slept (interrupted). Drives the engine meanwhile, unless another thread does.
  FutexWake wait(std::optional<Time> deadline) const;
  // The same however many signal handlers run; false at the deadline.
  bool outlast(std::optional<Time> deadline = std::nullopt) const;
  // The same without driving.
  FutexWake sleep(std::optional<Time> deadline) const;

  // Puts `token` into the inbox once this is done; at once where it is already. For one watcher:
  // false where there is another.
  bool watch(std::shared_ptr<CompletionInbox> inbox, std::uint64_t token);

  const std::shared_ptr<ProgressLock> progress_lock;
  const int generation = fork_generation();  // of the process that completes it
  FlightEntry flight;                        // set and read by whoever drives the engine
  std::atomic<std::uint32_t> done{0};
  mutable std::atomic<int> waiting{0};
  mutable std::atomic<int> sleeping{0};  // of them, those that have to be woken

 private:
  struct Watcher {
    std::shared_ptr<CompletionInbox> inbox;
    std::uint64_t token = 0;
  };
  void tell_watcher();

  // `watched` says that the watcher may be read; whoever sets `told` first tells it.
  Watcher watcher_;
  std::atomic<bool> claimed_{false};
  std::atomic<bool> watched_{false};
  std::atomic<bool> told_{false};
};

}  // namespace rueda
