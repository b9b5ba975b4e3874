// A process in a world: options, the application's commands and the progress that is made with
// them, counters, the flight recorder. It owns the epoch, what is at work in the world, and
// outlives it: the world may lose ranks and end, while handles, refusals and counters are still
// asked for. Where another world follows it gets a runtime of its own, to which this one leaves
// what belongs to the process: process sets, and the History of counters and timeline.
//
// Operations are handed in here; what is asked of tables and of process sets has parts of its own.
//
// Progress is made by whoever holds its lock: a thread of the runtime, or a caller that waits for a
// handle anyway.
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
  // What a world has from those before it in this process.
  struct Inheritance {
    std::shared_ptr<ProcessSets> sets;  // null: it begins with none
    std::shared_ptr<History> history;   // null: it begins one, as the world of take_over(0)
  };
  // Connects to the neighbours in the world's tree and starts the progress thread.
  // `on_failure` is called once, when the world breaks, by whoever makes progress.
  static Expected<std::unique_ptr<Runtime>> start(
      World world, const Options& options, LossPolicy on_loss = LossPolicy::end_world,
      std::function<void(const Status&)> on_failure = {}, Inheritance inherited = {});
  // Shuts down.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // --- Any thread may call all of this.

  // This world is the process's from now on, as that of this number: its timeline goes on with it.
  void take_over(std::uint64_t epoch);

  // Operations of a set, one or a group. What is wrong with them, or with the set, comes with the
  // handles. Empty names are numbered.
  std::vector<Handle> submit(int set_id, std::vector<Submission> submissions);
  // The same, and waits until all are done, the deadline, or a signal handler has run: for a caller
  // that would wait at once. Usually it does all the work itself and no other thread wakes up.
  std::vector<Handle> submit_and_wait(int set_id, std::vector<Submission> submissions,
                                      std::optional<Time> deadline = std::nullopt);
  // Tries an allreduce of a caller that waits at once: where it only repeats what was done before
  // and the others come within a moment, it is done without a submission. `begin_to_wait` is called
  // once before anything that takes longer, and says until when to wait. The call's name and shape
  // need not outlive that.
  struct Repetition {
    enum class Is : std::uint8_t { not_tried, done, begun };
    Is is = Is::not_tried;  // not_tried: it is to be submitted
    Handle handle = {};     // begun: this goes on, as one of submit_and_wait() does
  };
  Repetition repeat(int set_id, RepeatedCall call, const std::function<Time()>& begin_to_wait);
  Handle join(int set_id);
  // One side of a message between two ranks. What is wrong with it comes with the handle.
  Handle submit_message(MessageRequest request);
  [[nodiscard]] TableRequests& tables() { return tables_; }
  [[nodiscard]] SetRequests& sets() { return sets_; }

  // The world as it is now. Callers use only what it says is for any thread.
  [[nodiscard]] const Epoch& epoch() const { return epoch_; }
  [[nodiscard]] const Topology& topology() const { return epoch_.layout().topology; }
  // Which sets there are.
  [[nodiscard]] ProcessSets& process_sets() const { return epoch_.process_sets(); }

  [[nodiscard]] const Options& options() const { return options_; }
  // Counters of this world, those of the application's threads among them.
  [[nodiscard]] Metrics& metrics() { return metrics_; }
  [[nodiscard]] const std::shared_ptr<History>& history() const { return history_; }
  // The process's, as long as this world is; may begin and end while the runtime runs.
  [[nodiscard]] Timeline& timeline() { return timeline_; }
  // What this rank did last; nothing is recorded without Options::flight_recorder.
  [[nodiscard]] FlightRecorder& flight_recorder() { return recorder_; }

  // Leaves the world: what all ranks have agreed on is finished, the rest fails with ShutdownError.
  void shutdown();
  // Tells all ranks that this one is lost because of `cause`, then stops.
  void abort(const std::string& cause);

  // Whether nothing of the set is accepted any more. Cheap.
  [[nodiscard]] bool is_broken(int set_id = 0) const { return commands_.is_closed(set_id); }
  // Why; ok while it is accepted.
  [[nodiscard]] Status refusal(int set_id = 0) const { return commands_.refusal(set_id); }

  // In a forked child: gives up what the parent's peers watch. Async-signal-safe.
  void close_after_fork();

 private:
  Runtime(World world, const Options& options, LossPolicy on_loss,
          std::function<void(const Status&)> on_failure, Inheritance inherited);

  // Of each submission its handle.
  std::vector<Handle> open_handles(std::vector<Submission>& submissions) const;
  // Makes the submissions into a command; nothing when they are refused. `queue`: puts it there.
  std::optional<Command> accept(int set_id, std::vector<Submission> submissions, bool queue);
  Handle wait_for_others(RoundAtOnce& round, const RepeatedCall& call, Time deadline);
  void stop(Command command);

  const Options options_;
  const std::shared_ptr<History> history_;
  Metrics metrics_;
  const History::Chapter chapter_;  // of the history: these metrics
  Timeline timeline_;
  FlightRecorder recorder_;
  CommandQueue commands_;
  Epoch epoch_;
  Progress progress_;
  CommandSender sender_;
  TableRequests tables_;
  SetRequests sets_;
  std::mutex stop_mutex_;
};

}  // namespace rueda
