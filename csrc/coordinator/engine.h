// Everything that one rank owns. There is no state outside of it, so that many ranks can run as
// threads of one process and an application can initialise again.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/metrics.h"
#include "coordinator/process_sets.h"
#include "coordinator/set_coordinator.h"
#include "coordinator/submission.h"
#include "coordinator/timeline.h"
#include "core/options.h"
#include "core/unique_fd.h"
#include "membership/world.h"

namespace rueda {

class Engine {
 public:
  // Connects to the neighbours in the world's tree and starts the coordinator thread.
  static Expected<std::unique_ptr<Engine>> start(World world, const Options& options);
  // Shuts down.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- For any thread ---

  // Operations of a set, one or a group. What is wrong with them, or with the set, comes with the
  // handles. Empty names are numbered.
  std::vector<Handle> submit(int set_id, std::vector<Submission> submissions);
  Handle join(int set_id);

  [[nodiscard]] const Topology& topology() const { return world_.topology; }
  [[nodiscard]] const ProcessSets& process_sets() const { return process_sets_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::string_view transport_name() const { return transport_name_; }
  [[nodiscard]] std::map<std::string, std::int64_t> metrics() const { return metrics_.values(); }

  // Leaves the world: what all ranks have agreed on is finished, the rest fails with ShutdownError.
  void shutdown();
  // Tells all ranks that this one is lost because of `cause`, then stops.
  void abort(const std::string& cause);

  // What the ranks of this host share; null where they do not.
  [[nodiscard]] const std::shared_ptr<HostMemory>& host() const { return world_.host; }
  [[nodiscard]] const HostPolicy& host_policy() const { return world_.host_policy; }
  // Whether nothing is accepted any more. Cheap.
  [[nodiscard]] bool is_broken() const { return !accepting_; }
  // Why; ok while everything is.
  [[nodiscard]] Status refusal() const;

  // What broke the world; ok where nothing did. After shutdown() or abort().
  [[nodiscard]] const Status& failure() const { return failure_; }

  // In a forked child: gives up what the parent's peers watch. Async-signal-safe.
  void close_after_fork();

 private:
  struct Command {
    enum class Kind { submit, join, leave, abort };
    Kind kind = Kind::submit;
    int set_id = 0;
    std::vector<Submission> submissions;
    std::shared_ptr<HandleState> handle;  // join
    std::string cause;                    // abort
  };

  Engine(World world, const Options& options);

  Status choose_backend();
  Status connect();
  void number_unnamed(int set_id, std::vector<Submission>& submissions);
  void push(Command command);
  void stop();

  // --- The coordinator thread ---
  void run();
  void drive();
  bool step(Time now);
  bool take_commands(Time now);
  void obey(Command command, Time now);
  static void refuse(const Command& command, const Status& reason);
  bool may_stop(Time now) const;
  void sleep(Time now);
  void nap();
  void wake_up();
  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] std::optional<Time> next_deadline() const;
  void wind_up();

  void open_set(std::shared_ptr<const ProcessSetMembers> members);
  void administer(const Response& response, Submission submission);
  void refuse_elsewhere(int set_id, const std::string& name, int other_set);

  void receive(int peer, std::span<const std::byte> message, Time now);
  void receive_failure(int peer, std::span<const std::byte> payload);
  void lose(int peer, const Status& cause);
  void fail(const Status& reason);
  void send(int peer, std::vector<std::byte> message);
  [[nodiscard]] std::vector<int> neighbours() const;

  World world_;
  Options options_;
  std::string transport_name_;
  ProcessSets process_sets_;
  Metrics metrics_;
  Timeline timeline_;
  std::unique_ptr<Backend> backend_;

  std::map<int, std::unique_ptr<SetCoordinator>> sets_;
  struct EarlyMessage {
    int peer;
    std::vector<std::byte> message;
  };
  std::map<int, std::vector<EarlyMessage>> early_;  // for sets that this rank does not know yet
  std::set<std::pair<int, std::string>> refused_elsewhere_;
  Status failure_;  // once the world is broken
  std::optional<Time> leaving_until_;
  bool aborting_ = false;
  int fruitless_ = 0;  // polls in a row that moved nothing

  mutable std::mutex queue_mutex_;
  std::vector<Command> queue_;
  std::map<int, std::uint64_t> next_unnamed_;  // per set
  std::atomic<bool> accepting_ = true;         // changed under the mutex
  Status refusal_;                             // why nothing is accepted any more
  std::atomic<bool> asleep_{false};
  UniqueFd wake_fd_;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace rueda
