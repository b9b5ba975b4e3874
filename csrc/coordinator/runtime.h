// A process in one world: options, the application's commands, the progress made on them, counters
// and the flight recorder. It owns the epoch (what is at work in the world) and outlives it: the
// world may lose ranks and end while handles, refusals and counters are still in use. A following
// world gets its own runtime, which inherits what belongs to the process: process sets, and the
// History of counters and timeline.
//
// Operations are submitted here; tables and process sets have their own classes for requests.
//
// The holder of the progress lock makes progress: a thread of the runtime, or a caller that is
// waiting for a handle anyway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/command_queue.h"
#include "coordinator/command_sender.h"
#include "coordinator/epoch.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/history.h"
#include "coordinator/long_waits.h"
#include "coordinator/metrics.h"
#include "coordinator/progress.h"
#include "coordinator/repeated_call.h"
#include "coordinator/set_requests.h"
#include "coordinator/submission.h"
#include "coordinator/table_requests.h"
#include "coordinator/timeline.h"
#include "core/options.h"
#include "membership/world.h"
#include "rueda/rueda.h"

namespace rueda {

class Runtime {
 public:
  // What a world inherits from earlier worlds of this process.
  struct Inheritance {
    std::shared_ptr<ProcessSets> sets;  // null: starts with none
    std::shared_ptr<History> history;   // null: starts one, like the world of take_over(0)
  };
  // `on_failure` is called once, when the world breaks, by the thread that makes progress.
  static Expected<std::unique_ptr<Runtime>> start(
      World world, const Options& options, LossPolicy on_loss = LossPolicy::end_world,
      std::function<void(const Status&)> on_failure = {}, Inheritance inherited = {});
  // Shuts down.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // --- Any thread may call everything below.

  // Makes this the process's current world, with this number: its timeline continues here.
  void take_over(std::uint64_t epoch);

  // Submits operations of a set, one or a group. Errors in them or in the set are reported by the
  // handles. Operations without a name get a numbered one.
  std::vector<Handle> submit(int set_id, std::vector<Submission> submissions);
  // The same, then waits until all are done, the deadline, or a signal handler has run: for a
  // caller that would wait at once. It usually does all the work itself, and no other thread wakes
  // up.
  std::vector<Handle> submit_and_wait(int set_id, std::vector<Submission> submissions,
                                      std::optional<Time> deadline = std::nullopt);
  // Tries a collective for a caller that waits at once: if it repeats an earlier one and the other
  // ranks arrive within a moment, it completes without a submission. `begin_to_wait` is called
  // once, before anything that takes longer, and returns the deadline of the wait. The call's name
  // and shape need not outlive that.
  struct Repetition {
    enum class Is : std::uint8_t { not_tried, done, begun };
    Is is = Is::not_tried;  // not_tried: the caller must submit it
    Handle handle = {};     // begun: continues like one from submit_and_wait()
  };
  Repetition repeat(int set_id, RepeatedCall call, const std::function<Time()>& begin_to_wait);
  Handle join(int set_id);
  // One side of a message between two ranks. The handle reports errors.
  Handle submit_message(MessageRequest request);
  [[nodiscard]] TableRequests& tables() { return tables_; }
  [[nodiscard]] SetRequests& sets() { return sets_; }

  // The current world. Callers use only what it marks as being for any thread.
  [[nodiscard]] const Epoch& epoch() const { return epoch_; }
  [[nodiscard]] const Topology& topology() const { return epoch_.layout().topology; }
  // Which sets exist.
  [[nodiscard]] ProcessSets& process_sets() const { return epoch_.process_sets(); }

  [[nodiscard]] const Options& options() const { return options_; }
  // Counters of this world, including those of the application's threads.
  [[nodiscard]] Metrics& metrics() { return metrics_; }
  [[nodiscard]] const std::shared_ptr<History>& history() const { return history_; }
  // The process's, while this world is current; may start and stop while the runtime runs.
  [[nodiscard]] Timeline& timeline() { return timeline_; }
  // This rank's most recent operations; records nothing without Options::flight_recorder.
  [[nodiscard]] FlightRecorder& flight_recorder() { return recorder_; }

  // From now on, silent ranks are looked for as if an operation were in progress.
  [[nodiscard]] std::unique_ptr<LongWaits::Wait> begin_long_wait();

  // Leaves the world: finishes what all ranks have agreed on; the rest fails with ShutdownError.
  void shutdown();
  // Tells all ranks that this one is lost because of `cause`, then stops.
  void abort(const std::string& cause);

  // Whether the set accepts nothing any more. Cheap.
  [[nodiscard]] bool is_broken(int set_id = 0) const { return commands_.is_closed(set_id); }
  // Why; ok while the set accepts submissions.
  [[nodiscard]] Status refusal(int set_id = 0) const { return commands_.refusal(set_id); }

  // In a forked child: closes what the parent's peers watch. Async-signal-safe.
  void close_after_fork();

 private:
  Runtime(World world, const Options& options, LossPolicy on_loss,
          std::function<void(const Status&)> on_failure, Inheritance inherited);

  // One handle per submission.
  std::vector<Handle> open_handles(std::vector<Submission>& submissions) const;
  // Turns the submissions into a command and queues it if `queue`; nothing if they are refused.
  std::optional<Command> accept(int set_id, std::vector<Submission> submissions, bool queue);
  Handle wait_for_others(RoundAtOnce& round, const RepeatedCall& call, Time deadline);
  void stop(Command command);

  const Options options_;
  const std::shared_ptr<History> history_;
  Metrics metrics_;
  const History::Chapter chapter_;  // these metrics' part of the history
  Timeline timeline_;
  FlightRecorder recorder_;
  LongWaits long_waits_;
  CommandQueue commands_;
  Epoch epoch_;
  Progress progress_;
  CommandSender sender_;
  TableRequests tables_;
  SetRequests sets_;
  std::mutex stop_mutex_;
};

}  // namespace rueda
