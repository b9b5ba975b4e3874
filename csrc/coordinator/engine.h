// Everything that one rank owns. There is no state outside of it, so that many ranks can run as
// threads of one process and an application can initialise again.
//
// engine.cpp: what any thread may call. engine_driving.cpp: how it is driven, by its own thread or
// by a caller that waits. engine_work.cpp: what is done then.
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

#include "coordinator/backoff.h"
#include "coordinator/metrics.h"
#include "coordinator/point_to_point.h"
#include "coordinator/process_sets.h"
#include "coordinator/progress_lock.h"
#include "coordinator/set_coordinator.h"
#include "coordinator/submission.h"
#include "coordinator/timeline.h"
#include "coordinator/watcher.h"
#include "core/options.h"
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
  // The same, and waits until all are done, the deadline, or a signal handler has run: for a caller
  // that would wait at once. Usually it does all the work itself and no other thread wakes up.
  std::vector<Handle> submit_and_wait(int set_id, std::vector<Submission> submissions,
                                      std::optional<Time> deadline = std::nullopt);
  Handle join(int set_id);
  // One side of a message between two ranks. What is wrong with it comes with the handle.
  Handle submit_message(MessageRequest request);
  // A set that only its members know, see ProcessSets::form(); and its end on this rank, with which
  // it ends for all.
  Status form_set(int id, const std::vector<int>& ranks);
  Status dissolve_set(int id);

  [[nodiscard]] const Topology& topology() const { return world_.topology; }
  [[nodiscard]] const ProcessSets& process_sets() const { return process_sets_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::string_view transport_name() const { return transport_name_; }
  [[nodiscard]] std::map<std::string, std::int64_t> metrics() const { return metrics_.values(); }
  void count_filled_gradient() { metrics_.gradients_filled.add(1); }

  // Begins and ends a timeline while the engine runs; see Timeline::open().
  Status start_timeline(const std::string& path, const TimelineStyle& style = {}) {
    return timeline_.open(path, topology().rank, style);
  }
  void stop_timeline() { timeline_.close(); }

  // Leaves the world: what all ranks have agreed on is finished, the rest fails with ShutdownError.
  void shutdown();
  // Tells all ranks that this one is lost because of `cause`, then stops.
  void abort(const std::string& cause);

  // The ranks of this host, and what they share.
  [[nodiscard]] const HostGroup& host() const { return world_.host; }
  // Of ranks of this host that share memory.
  [[nodiscard]] const HostPolicy& host_policy() const { return host_policy_; }
  // How ranks that share memory exchange so many bytes; nothing for the ring.
  [[nodiscard]] std::optional<HostPolicy> host_policy(std::size_t bytes) const {
    return policy_for(algorithms_, host_policy_, bytes);
  }
  [[nodiscard]] const AlgorithmTable& algorithms() const { return algorithms_; }
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
    enum class Kind { submit, message, join, form, dissolve, leave, abort };
    Kind kind = Kind::submit;
    int set_id = 0;
    std::vector<Submission> submissions;
    OpenHandle handle;  // join, form
    MessageRequest message;
    std::vector<int> ranks;  // form
    std::string cause;       // abort
  };

  Engine(World world, const Options& options);

  Status choose_backend();
  Status connect();
  void mark_streams(std::vector<Submission>& submissions);
  std::vector<Handle> open_handles(std::vector<Submission>& submissions) const;
  // Makes the submissions into a command; nothing when they are refused. `queue`: puts it there.
  std::optional<Command> accept(int set_id, std::vector<Submission> submissions, bool queue);
  void reserve_room(Submission& submission) const;
  void number_unnamed(int set_id, std::vector<Submission>& submissions);
  void push(Command command);

  // --- Driving: by the owner of the progress lock
  void run();
  bool drive();
  FutexWake drive_until_done(const HandleState& handle, std::optional<Time> deadline);
  FutexWake drive_as_caller(const HandleState& handle, std::optional<Time> deadline);
  void acquire();
  void release();
  void yield_to_caller();
  bool step(Time now);
  bool poll_control();
  struct Slept {
    FutexWake wake = FutexWake::changed;
    bool really = false;   // not only looked again
    bool has_lock = true;  // no caller has taken it meanwhile
  };
  Slept sleep(std::optional<Time> until, bool as_thread);
  Slept back_off_polling(bool as_thread);
  Slept park(Sleeper& sleeper, std::optional<Time> deadline, bool as_thread);
  void disarm();
  void fail_internal(const std::exception& error);
  bool may_stop(Time now) const;
  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool uses_transport() const;
  [[nodiscard]] bool must_be_polled() const;
  [[nodiscard]] bool negotiates() const;
  [[nodiscard]] bool expects() const;
  [[nodiscard]] bool is_unfinished(Time now) const;
  [[nodiscard]] bool is_due(Time now) const;
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] std::optional<Time> next_deadline() const;
  void wind_up();

  // --- Work: by the owner of the progress lock
  bool take_commands(Time now);
  void handle_command_now(Command command);
  void handle_command(Command command, Time now);
  static void refuse(const Command& command, const Status& reason);

  void open_set(std::shared_ptr<const ProcessSetMembers> members,
                std::shared_ptr<ControlRoom> room = nullptr);
  void start_set(const std::shared_ptr<const ProcessSetMembers>& members,
                 std::shared_ptr<ControlRoom> room);
  [[nodiscard]] Status no_room() const;
  void forget_set(int id);
  void apply_set_change(const Response& response, Submission submission);
  void refuse_elsewhere(int set_id, const std::string& name, int other_set);

  void receive(int peer, std::span<const std::byte> message, Time now);
  void receive_failure(int peer, std::span<const std::byte> payload);
  void on_peer_lost(int peer, const Status& cause);
  void fail(const Status& reason);
  void send(int peer, std::vector<std::byte> message);
  void send_message(int peer, std::vector<std::byte> message);
  [[nodiscard]] std::vector<int> neighbours() const;

  World world_;
  Options options_;
  std::string transport_name_;
  ProcessSets process_sets_;
  Metrics metrics_;
  Timeline timeline_;
  HostPolicy host_policy_;
  AlgorithmTable algorithms_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceBackend> devices_;

  std::map<int, std::unique_ptr<SetCoordinator>> sets_;
  PointToPoint messages_;
  struct EarlyMessage {
    int peer;
    std::vector<std::byte> message;
  };
  std::map<int, std::vector<EarlyMessage>> early_;  // for sets that this rank does not know yet
  std::set<std::pair<int, std::string>> refused_elsewhere_;
  Status failure_;  // once the world is broken
  std::optional<Time> leaving_until_;
  bool stopping_ = false;  // without good-bye
  bool armed_ = false;     // the transport, for a sleep
  int polls_in_vain_ = 0;  // in a row
  bool woken_ = false;     // the progress thread, which has not stepped yet

  mutable std::mutex queue_mutex_;
  std::vector<Command> queue_;
  std::map<int, std::uint64_t> next_unnamed_;  // per set
  std::atomic<bool> accepting_ = true;         // changed under the mutex
  Status refusal_;                             // why nothing is accepted any more

  const bool oversubscribed_;  // the ranks of this host share processors
  Placement placement_;        // of the owner of the progress lock
  WakeWord* word_;             // on which that owner sleeps
  WakeWord own_word_{};
  std::shared_ptr<ProgressLock> progress_lock_;
  Watcher watcher_;

  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace rueda
