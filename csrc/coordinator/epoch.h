// One world of ranks at work on this rank: its process sets, their operations, its messages. An
// epoch loses ranks, and with each of them what that rank takes part in; it never gets any back.
//
// Used by the owner of the progress lock only, but for what is said to be for any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "coordinator/active_messages.h"
#include "coordinator/command.h"
#include "coordinator/command_queue.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/metrics.h"
#include "coordinator/point_to_point.h"
#include "coordinator/process_sets.h"
#include "coordinator/progress.h"
#include "coordinator/set_coordinator.h"
#include "coordinator/table_client.h"
#include "coordinator/table_owner.h"
#include "coordinator/timeline.h"
#include "coordinator/whereabouts_answers.h"
#include "core/options.h"
#include "membership/world.h"
#include "plan/heartbeat.h"

namespace rueda {

// What outlives an epoch. All is referred to.
struct EpochServices {
  const Options& options;
  CommandQueue& commands;
  Metrics& metrics;
  Timeline& timeline;
  FlightRecorder& recorder;
  std::function<void(const Status&)> on_failure = {};  // once, when the epoch breaks
};

// What becomes of the epoch when a rank is lost: it ends for all ranks, or goes on for the process
// sets and messages of which that rank is no part, unless a collective with that rank is on its way
// over the transport.
enum class LossPolicy : std::uint8_t { end_world, keep_others };

class Epoch final : public Progress::Work {
 public:
  // `sets`: see Runtime::start().
  Epoch(World world, const EpochServices& services, LossPolicy on_loss,
        std::shared_ptr<ProcessSets> sets = nullptr);
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  // Chooses how tensors are reduced, connects to the neighbours in the world's tree and opens the
  // sets that there are. Fails with ErrorCode::initialization.
  Status open();

  // --- For any thread

  [[nodiscard]] const Topology& topology() const { return world_.topology; }
  [[nodiscard]] std::string_view transport_name() const { return transport_name_; }
  [[nodiscard]] const HostGroup& host() const { return world_.host; }
  [[nodiscard]] const HostPolicy& host_policy() const { return host_policy_; }
  // Of sets on one host.
  [[nodiscard]] const AlgorithmTable& algorithms() const { return algorithms_; }
  // Of the world.
  [[nodiscard]] AlgorithmTable algorithms_of_world() const;
  // Of all that it does, as AlgorithmTable::parse() reads it.
  [[nodiscard]] std::string describe_algorithms() const;
  [[nodiscard]] const LinkCosts& link_costs() const { return world_.link_costs; }
  [[nodiscard]] const std::vector<TriedLink>& links_tried() const { return world_.links_tried; }
  [[nodiscard]] ProcessSets& process_sets() { return *process_sets_; }
  [[nodiscard]] const ProcessSets& process_sets() const { return *process_sets_; }
  // Takes what adding a process set needs of the memory that its ranks share, where this is such a
  // request: a rank without room says so while the others still wait for it to agree.
  void reserve_room(Submission& submission) const;
  // Notes what the streams of tensors on GPUs have to finish first.
  void mark_streams(std::vector<Submission>& submissions);
  // Async-signal-safe.
  void close_after_fork() { world_.control->close_after_fork(); }

  [[nodiscard]] int control_fd() const { return world_.control->wait_fd(); }
  [[nodiscard]] int transport_fd() const { return world_.transport->wait_fd(); }
  // What broke the epoch; ok where nothing did. Any thread, once progress has ended.
  [[nodiscard]] const Status& failure() const { return failure_; }
  // The operations that were open then, e.g. "allreduce of 'x'"; the same.
  [[nodiscard]] std::vector<std::string> interrupted() const;

  // --- For the owner of the progress lock

  // Everything that was asked for before comes first.
  void carry_out_now(Command command);
  // For calls of the set that need no submission; null where they have to be submitted.
  [[nodiscard]] RoundAtOnce* round_at_once(int set_id);
  // Null where this rank has opened no such set, or nothing is left of it.
  [[nodiscard]] const SetCoordinator* find_set(int id) const {
    const auto set = sets_.find(id);
    return set == sets_.end() ? nullptr : set->second.get();
  }

  bool take_commands(Time now) override;
  bool advance(Time now, Readable readable) override;
  [[nodiscard]] bool is_active() const override;
  [[nodiscard]] std::optional<Time> next_deadline() const override;
  [[nodiscard]] bool requires_polling() const override;
  [[nodiscard]] bool awaits_network() const override {
    return uses_transport() && transport_fd() >= 0;
  }
  [[nodiscard]] bool awaits_messages() const override { return negotiates(); }
  void prepare_to_sleep() override { services_.timeline.flush(); }
  Arming arm() override;
  void disarm() override { world_.transport->disarm(); }
  [[nodiscard]] bool may_stop(Time now) const override;
  void wind_up() override;
  void fail_internal(const std::exception& error) override;

 private:
  Status choose_backend();
  // Whether a set with these parts does what it can in the memory of each host.
  [[nodiscard]] bool spans_hosts(const HostParts& parts) const;
  [[nodiscard]] AlgorithmTable algorithms_across(const HostParts& parts) const;
  [[nodiscard]] AlgorithmTable alltoall_across(const HostParts& parts) const;
  [[nodiscard]] std::vector<int> neighbours() const;

  // --- Commands
  void carry_out(Command command, Time now);
  void start(Command command, SetCoordinator& set, Time now);
  void start_on_table(Command command);

  // --- Process sets
  Status open_inherited_sets();
  void create_group(const Command& command);
  void open_set(std::shared_ptr<const ProcessSetMembers> members,
                std::shared_ptr<ControlRoom> room = nullptr);
  void start_set(const std::shared_ptr<const ProcessSetMembers>& members,
                 std::shared_ptr<ControlRoom> room);
  [[nodiscard]] SetCoordinator::Events events_of(int set_id);
  void apply_set_change(const Response& response, Submission submission);
  void answer_change(OpenHandle handle, int set_id);
  void answer_changes(const Status& status);
  void refuse_elsewhere(int set_id, const std::string& name, int other_set);
  void forget_set(int id);
  // What a set of these ranks, with this one, is to find room for: its members here.
  struct Sharers {
    HostMembers members;
    bool spans_hosts = false;
  };
  [[nodiscard]] Sharers sharers_of(std::vector<int> ranks) const;
  [[nodiscard]] Status no_room() const;
  bool step_sets(Time now);

  // --- Messages
  void handle_messages();
  bool receive_negotiation(int peer, std::span<const std::byte> payload);
  bool receive_failure(int peer, std::span<const std::byte> payload);
  bool receive_loss(std::span<const std::byte> payload);
  bool receive_whereabouts(int peer, std::span<const std::byte> payload);
  void handle_table_messages();

  // --- Failures
  void on_peer_lost(int peer, const Status& cause);
  void look_for_silence(Time now);
  bool is_excused(int peer, Time now);
  void fence(const Status& reason);
  void lose(int rank, const Status& reason);
  void fail(const Status& reason);
  void tell_neighbours(ControlMessage kind, const Status& reason);

  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool uses_transport() const;
  [[nodiscard]] bool negotiates() const;
  [[nodiscard]] bool is_over() const;

  World world_;
  const EpochServices services_;
  const LossPolicy on_loss_;
  const std::string transport_name_;
  const std::shared_ptr<ProcessSets> process_sets_;  // what follows the world asks them, too
  HostPolicy host_policy_;
  AlgorithmTable algorithms_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceBackend> devices_;
  std::map<int, std::unique_ptr<SetCoordinator>> sets_;
  ActiveMessages control_;
  PointToPoint messages_;
  TableClient table_client_;
  TableOwner table_owner_;
  WhereaboutsAnswers whereabouts_;
  Heartbeat heartbeat_;  // of the neighbours in the world's tree
  struct EarlyMessage {
    int peer;
    std::vector<std::byte> payload;
  };
  std::map<int, std::vector<EarlyMessage>> early_;  // for sets that this rank does not know yet
  std::set<std::pair<int, std::string>> refused_elsewhere_;
  struct Change {
    OpenHandle handle;
    int set_id = 0;  // of a set that was added
  };
  std::vector<Change> unanswered_;  // made while the sets are offered to another world
  std::set<int> lost_;              // ranks without which the epoch goes on
  Status failure_;                  // once the epoch is broken
  std::optional<Time> leaving_until_;
  bool stopping_ = false;  // without good-bye
};

}  // namespace rueda
