// What lives on in a process that uses Rueda, whatever becomes of its world: options, counters,
// timeline, the application's commands and the progress that is made with them. It owns the epoch,
// the world as it is now.
//
// Progress is made by whoever holds its lock: a thread of the runtime, or a caller that waits for a
// handle anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/command_queue.h"
#include "coordinator/epoch.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/metrics.h"
#include "coordinator/progress.h"
#include "coordinator/repeated_call.h"
#include "coordinator/submission.h"
#include "coordinator/table_names.h"
#include "coordinator/timeline.h"
#include "core/options.h"
#include "membership/world.h"
#include "rueda/rueda.h"

namespace rueda {

class Runtime {
 public:
  // Connects to the neighbours in the world's tree and starts the progress thread.
  // `on_failure` is called once, when the world breaks, by whoever makes progress. `sets`: those
  // that the world has from one before it; by default it begins with none.
  static Expected<std::unique_ptr<Runtime>> start(
      World world, const Options& options, LossPolicy on_loss = LossPolicy::end_world,
      std::function<void(const Status&)> on_failure = {},
      std::shared_ptr<ProcessSets> sets = nullptr);
  // Shuts down.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // --- Any thread may call all of this.

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
  // A table is opened and closed on all ranks of its set, which agree on its number.
  [[nodiscard]] TableNames& table_names() const { return *table_names_; }
  Status open_table(int set_id, HeldTable table);
  Handle use_table(int set_id, std::shared_ptr<TableOperation> operation);
  void close_table(std::uint64_t number);
  // A set that only its members know, see ProcessSets::form(); and its end on this rank, with which
  // it ends for all.
  Status form_set(int id, const std::vector<int>& ranks);
  Status dissolve_set(int id);
  // The end of all sets that every rank knows, on this rank: each does so at the same place among
  // what it does with them, and none waits for another.
  void end_added_sets();

  [[nodiscard]] const Topology& topology() const { return epoch_.layout().topology; }
  [[nodiscard]] ProcessSets& process_sets() { return epoch_.process_sets(); }
  [[nodiscard]] const ProcessSets& process_sets() const { return epoch_.process_sets(); }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::string_view transport_name() const { return epoch_.transport_name(); }
  [[nodiscard]] std::map<std::string, std::int64_t> metrics() const { return metrics_.values(); }
  void count_filled_gradient() { metrics_.gradients_filled.add(1); }
  void count_table_parts_direct(std::int64_t parts) { metrics_.table_parts_direct.add(parts); }

  // Begins and ends a timeline while the runtime runs; see Timeline::open().
  Status start_timeline(const std::string& path, const TimelineStyle& style = {}) {
    return timeline_.open(path, topology().rank, style);
  }
  void stop_timeline() { timeline_.close(); }

  // For what threads of the application do by themselves.
  [[nodiscard]] Timeline& timeline() { return timeline_; }
  [[nodiscard]] PersistentRuns& persistent_runs() { return metrics_.persistent_runs; }

  // What this rank did last; nothing is recorded without Options::flight_recorder.
  [[nodiscard]] FlightRecorder& flight_recorder() { return recorder_; }

  // Leaves the world: what all ranks have agreed on is finished, the rest fails with ShutdownError.
  void shutdown();
  // Tells all ranks that this one is lost because of `cause`, then stops.
  void abort(const std::string& cause);

  // The ranks of this host, and what they share.
  [[nodiscard]] const HostGroup& host() const { return epoch_.layout().host; }
  // Of ranks of this host that share memory.
  [[nodiscard]] const HostPolicy& host_policy() const { return epoch_.algorithms().host_policy(); }
  // How ranks that share memory exchange so many bytes; nothing for the ring.
  [[nodiscard]] std::optional<HostPolicy> host_policy(std::size_t bytes) const {
    return epoch_.algorithms().host_policy(bytes);
  }
  [[nodiscard]] const AlgorithmTable& algorithms() const { return epoch_.algorithms().on_host(); }
  [[nodiscard]] AlgorithmTable algorithms_of_world() const {
    return epoch_.algorithms().of_world();
  }
  [[nodiscard]] std::string describe_algorithms() const { return epoch_.algorithms().describe(); }
  [[nodiscard]] const LinkCosts& link_costs() const { return epoch_.layout().link_costs; }
  [[nodiscard]] const std::vector<TriedLink>& links_tried() const {
    return epoch_.layout().links_tried;
  }
  // Whether nothing of the set is accepted any more. Cheap.
  [[nodiscard]] bool is_broken(int set_id = 0) const { return commands_.is_closed(set_id); }
  // Why; ok while it is accepted.
  [[nodiscard]] Status refusal(int set_id = 0) const { return commands_.refusal(set_id); }

  // What broke the world; ok where nothing did. After shutdown() or abort().
  [[nodiscard]] const Status& failure() const { return epoch_.failure(); }
  // The operations that were open then, the first of many; the same.
  [[nodiscard]] std::vector<std::string> interrupted() const { return epoch_.sets().interrupted(); }

  // In a forked child: gives up what the parent's peers watch. Async-signal-safe.
  void close_after_fork();

 private:
  Runtime(World world, const Options& options, LossPolicy on_loss,
          std::function<void(const Status&)> on_failure, std::shared_ptr<ProcessSets> sets);

  std::vector<Handle> open_handles(std::vector<Submission>& submissions) const;
  // Makes the submissions into a command; nothing when they are refused. `queue`: puts it there.
  std::optional<Command> accept(int set_id, std::vector<Submission> submissions, bool queue);
  Handle wait_for_others(RoundAtOnce& round, const RepeatedCall& call, Time deadline);
  [[nodiscard]] Status refusal_of(const MessageRequest& request) const;
  Status end_set(int id);
  void push(Command command);
  void stop(Command command);

  const Options options_;
  Metrics metrics_;
  Timeline timeline_;
  FlightRecorder recorder_;
  CommandQueue commands_;
  Epoch epoch_;
  Progress progress_;
  const std::shared_ptr<TableNames> table_names_ = std::make_shared<TableNames>();
  std::mutex stop_mutex_;
};

}  // namespace rueda
