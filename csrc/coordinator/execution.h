// Batches in progress: the collective itself and the completion of the handles.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "backend/eager.h"
#include "coordinator/batch.h"
#include "coordinator/process_sets.h"
#include "coordinator/unfused_collective.h"
#include "core/options.h"
#include "onehost/host_group.h"
#include "plan/load.h"
#include "plan/set_hosts.h"

namespace rueda {

class Execution {
 public:
  // Starts the batch. Either all members are allreduces that are fused, or there is one member.
  // `contributions`: what all ranks contribute, if it has arrived already.
  Execution(const ExecutionContext& context, const Lane& lane, std::vector<BatchMember> members,
            Time now, const Contributions& contributions = {});
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  // Advances without blocking; returns whether anything moved. Completes the handles once the
  // collective is done.
  bool advance(Time now);
  [[nodiscard]] bool done() const { return done_; }
  // Not ok if the transfer failed; the handles are then still open, and the batch is lost on this
  // rank.
  [[nodiscard]] const Status& status() const { return status_; }
  // Completes the handles with an error. No transport may still access the tensors.
  void fail(const Status& reason);

  [[nodiscard]] std::int32_t priority() const { return request().priority; }
  // The name of its first tensor.
  [[nodiscard]] const std::string& name() const { return request().name; }
  [[nodiscard]] bool uses_transport() const { return operation_ && operation_->uses_transport(); }
  [[nodiscard]] bool must_be_polled() const { return operation_ && operation_->must_be_polled(); }
  // An operation that waits for its turn counts as moving.
  [[nodiscard]] Time last_moved() const {
    return operation_ && operation_->waits_for_its_turn() ? Clock::now() : last_moved_;
  }
  // "batch of 3 tensors beginning with 'conv1.weight'"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  void start(const Contributions& contributions);
  void give_up_for_memory();
  // Sets the priority of its messages, if other batches share the links.
  void set_priority(std::int32_t priority);
  void await_inputs();
  [[nodiscard]] std::unique_ptr<Operation> allreduce(const Contributions& contributions);

  [[nodiscard]] const Request& request() const { return members_.front().response->request; }
  void complete_handles();
  // Each error has the tensor's own name.
  void fail_by_name(const Status& reason);
  template <class StatusOf>
  void end_with(const StatusOf& status_of);
  void record_start(const BatchMember& member);
  void record_end();

  ExecutionContext context_;
  Lane lane_;
  std::vector<BatchMember> members_;
  UnfusedCollective unfused_;  // of the first member; started unless it is an allreduce
  std::unique_ptr<Operation> operation_;
  Time started_at_;
  Time last_moved_;
  bool has_priority_ = false;  // its messages have a priority
  bool done_ = false;
  Status status_;
};

// All batches of a process set in progress, and the channels on which its members meet.
class Batches {
 public:
  // `parts`: which members share memory. `hosts`: the same for operations across hosts; null if all
  // are on one host or nothing is known of hosts. `room`: see reserve().
  Batches(std::shared_ptr<const ProcessSetMembers> members, const HostParts& parts,
          std::unique_ptr<const SetHosts> hosts, const Options& options,
          const ExecutionContext& context, Transport& transport, std::shared_ptr<ControlRoom> room);

  // Reserves room in the members' shared memory for everything that their set will publish there. A
  // rank that reserves it before the ranks agree on the set cannot fail to open it afterwards. Null
  // if there is no room, or if they share no memory. `spans_hosts`: `host` is not all members.
  [[nodiscard]] static std::shared_ptr<ControlRoom> reserve(const HostMembers& host,
                                                            bool spans_hosts);

  // This rank will not open the set, so the other members need not wait for it before they reuse
  // what they have published there.
  static void forgo(const HostMembers& host, bool spans_hosts, int set_id);

  void start(std::vector<BatchMember> members, BatchOrder order, Time now,
             const Contributions& contributions);
  // Advances without blocking, the most urgent first; returns whether anything moved. Batches that
  // have ended successfully are removed.
  bool advance(Time now);

  [[nodiscard]] std::size_t size() const { return running_.size(); }
  [[nodiscard]] Load load() const;
  [[nodiscard]] bool uses_transport() const;
  // Whether something is in progress for which no wake-up announces progress.
  [[nodiscard]] bool must_be_polled() const;
  // Whether this many bytes may be sent along with a rank's readiness.
  [[nodiscard]] bool may_be_eager(std::size_t bytes) const;
  // The error of a batch that failed or has not moved for `timeout` (zero: no limit); else ok.
  [[nodiscard]] Status broken(Time now, Duration timeout) const;
  [[nodiscard]] std::optional<Time> oldest_move() const;

  // Fails all, whose transport must have been aborted, and uses no channel any more. Returns their
  // descriptions.
  std::vector<std::string> fail(const Status& reason);

 private:
  struct Order {
    std::unique_ptr<HostChannel> channel;  // null if the ranks share no memory
    // In a set that spans hosts: for the members here, see Lane; null if this rank is alone.
    std::unique_ptr<HostChannel> before_links;
    std::array<std::unique_ptr<HostChannel>, after_channels> after_links;
    std::uint64_t next_batch = 0;
  };
  void open_channels(Order& order);

  std::shared_ptr<const ProcessSetMembers> members_;
  const std::size_t max_in_flight_;
  const ExecutionContext context_;
  const std::shared_ptr<ControlRoom> room_;  // null: as much as is available
  const HostMembers here_;                   // in a set that spans hosts, the members on this one
  const int rank_here_;
  const std::unique_ptr<const SetHosts> hosts_;
  std::array<Order, batch_orders> orders_;         // by BatchOrder
  Lane lane_;                                      // except channel and tag
  std::list<std::unique_ptr<Execution>> running_;  // the most urgent first
};

}  // namespace rueda
