// Batches on their way: the collective itself and the completion of the handles.
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
  // Starts. All members are allreduces that belong together, or there is one member.
  // `contributions`: what all ranks contribute, if it has come already.
  Execution(const ExecutionContext& context, const Lane& lane, std::vector<BatchMember> members,
            Time now, const Contributions& contributions = {});
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  // Goes on without blocking; returns whether anything moved. Once the collective is over,
  // completes the handles.
  bool advance(Time now);
  [[nodiscard]] bool done() const { return done_; }
  // Not ok when the transfer failed; the handles are then still open, and the batch is lost on this
  // rank.
  [[nodiscard]] const Status& status() const { return status_; }
  // Completes the handles with an error. No transport may touch the tensors any more.
  void fail(const Status& reason);

  [[nodiscard]] std::int32_t priority() const { return request().priority; }
  // Of the first of its tensors.
  [[nodiscard]] const std::string& name() const { return request().name; }
  [[nodiscard]] bool uses_transport() const { return operation_ && operation_->uses_transport(); }
  [[nodiscard]] bool must_be_polled() const { return operation_ && operation_->must_be_polled(); }
  // What others wait for does not count.
  [[nodiscard]] Time last_moved() const {
    return operation_ && operation_->waits_for_its_turn() ? Clock::now() : last_moved_;
  }
  // "batch of 3 tensors beginning with 'conv1.weight'"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  void start(const Contributions& contributions);
  // Of its messages, where other batches share the links.
  void set_priority(std::int32_t priority);
  void await_inputs();
  [[nodiscard]] std::unique_ptr<Operation> allreduce(const Contributions& contributions);

  [[nodiscard]] const Request& request() const { return members_.front().response->request; }
  void complete_handles();
  // Each with its own name in the error.
  void fail_by_name(const Status& reason);
  template <class StatusOf>
  void end_with(const StatusOf& status_of);
  void record_start(const BatchMember& member);
  void record_end();

  ExecutionContext context_;
  Lane lane_;
  std::vector<BatchMember> members_;
  UnfusedCollective unfused_;  // of the first member; started where it is no allreduce
  std::unique_ptr<Operation> operation_;
  Time started_at_;
  Time last_moved_;
  bool has_priority_ = false;  // its messages have one
  bool done_ = false;
  Status status_;
};

// All batches of a process set that are under way, and where its members meet for them.
class Batches {
 public:
  // `parts`: which of the members share memory. `hosts`: the same for operations across hosts; null
  // where all are on one, or nothing is known of hosts. `room`: see reserve().
  Batches(std::shared_ptr<const ProcessSetMembers> members, const HostParts& parts,
          std::unique_ptr<const SetHosts> hosts, const Options& options,
          const ExecutionContext& context, Transport& transport, std::shared_ptr<ControlRoom> room);

  // Room in the memory that the members share for all that their set will publish there. A rank
  // that takes it before the ranks agree on the set cannot fail to open it afterwards. Null where
  // there is none, or where they share no memory. `spans_hosts`: these are not all members.
  [[nodiscard]] static std::shared_ptr<ControlRoom> reserve(const HostMembers& host,
                                                            bool spans_hosts);

  void start(std::vector<BatchMember> members, BatchOrder order, Time now,
             const Contributions& contributions);
  // Goes on without blocking, the most urgent first; returns whether anything moved. What has ended
  // well is under way no more.
  bool advance(Time now);

  [[nodiscard]] std::size_t size() const { return running_.size(); }
  [[nodiscard]] Load load() const;
  [[nodiscard]] bool uses_transport() const;
  // Whether something is under way of which nothing tells when it can go on.
  [[nodiscard]] bool must_be_polled() const;
  // Whether so many bytes may come along with the news that ranks are ready.
  [[nodiscard]] bool may_be_eager(std::size_t bytes) const;
  // A batch that failed, or has not moved for `timeout` (zero: ever); ok where there is none.
  [[nodiscard]] Status broken(Time now, Duration timeout) const;
  [[nodiscard]] std::optional<Time> oldest_move() const;

  // Fails all, whose transport must have been aborted, and goes to no channel any more. Returns
  // what they were.
  std::vector<std::string> fail(const Status& reason);

 private:
  struct Order {
    std::unique_ptr<HostChannel> channel;  // null where the ranks do not share memory
    // Of a set that spans hosts: of the members here, see Lane; null where this rank is alone.
    std::unique_ptr<HostChannel> before_links;
    std::array<std::unique_ptr<HostChannel>, after_channels> after_links;
    std::uint64_t next_batch = 0;
  };
  void open_channels(Order& order);

  std::shared_ptr<const ProcessSetMembers> members_;
  const std::size_t max_in_flight_;
  const ExecutionContext context_;
  const std::shared_ptr<ControlRoom> room_;  // null: as much as there is
  const HostMembers here_;                   // of a set that spans hosts, the members on this one
  const int rank_here_;
  const std::unique_ptr<const SetHosts> hosts_;
  std::array<Order, batch_orders> orders_;         // by BatchOrder
  Lane lane_;                                      // but for channel and tag
  std::list<std::unique_ptr<Execution>> running_;  // the most urgent first
};

}  // namespace rueda
