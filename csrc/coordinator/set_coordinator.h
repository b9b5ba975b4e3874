// One process set at work on this rank: replays or negotiates what the application submits, and
// executes what the members have agreed on. Used only by the owner of the progress lock.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/deferred_submissions.h"
#include "coordinator/execution.h"
#include "coordinator/process_sets.h"
#include "coordinator/replay.h"
#include "coordinator/round_at_once.h"
#include "coordinator/set_negotiation.h"
#include "coordinator/submission.h"
#include "core/options.h"
#include "plan/set_hosts.h"

namespace rueda {

class SetCoordinator {
 public:
  using Events = SetNegotiation::Events;

  // `parts`, `hosts` and `room`: see Batches.
  SetCoordinator(std::shared_ptr<const ProcessSetMembers> members, const HostParts& parts,
                 std::unique_ptr<const SetHosts> hosts, const Options& options,
                 const ExecutionContext& context, Transport& transport, Events events,
                 std::shared_ptr<ControlRoom> room = nullptr);

  // `free_name`: a numbered name whose turn has come, even if other submissions wait for it.
  void submit(std::vector<Submission> submissions, Time now, const std::string& free_name = {});
  // For calls that need no submission. Null while anything of the set is in progress, or while
  // something records each step of an operation.
  [[nodiscard]] RoundAtOnce* at_once();
  void join(OpenHandle handle);
  void leave();
  // False if the peer is not a member.
  bool receive(int peer, std::span<const std::byte> message, Time now);
  // A member's report of where its application is.
  void hear_whereabouts(int peer, std::string text, Time now);

  // Negotiates, starts what has been agreed on and advances what is in flight, as far as possible
  // without blocking; returns whether anything happened.
  bool step(Time now);

  [[nodiscard]] const ProcessSetMembers& members() const { return *members_; }
  [[nodiscard]] const Batches& batches() const { return batches_; }
  [[nodiscard]] bool is_pending(const std::string& name) const {
    return negotiation_.pending().contains(name) || (replay_.holds_any() && replay_.holds(name));
  }
  // Whether batches are in progress, only the other members are awaited, or they still need this
  // rank although the set has ended.
  [[nodiscard]] bool in_flight() const {
    return batches_.size() > 0 || replay_.waits() || (!closing().ok() && replay_.is_needed());
  }
  // Whether messages from other members are expected at any moment.
  [[nodiscard]] bool negotiates() const {
    return negotiation_.waits() || replay_.waits_for_hosts();
  }
  // Why nothing more can be agreed on; ok while the set is open.
  [[nodiscard]] const Status& closing() const { return negotiation_.closed(); }
  // When step() should be called even if nothing happens.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  // The set has been removed, which all members learn: it ends, in its own stream of responses,
  // when each member has said that it knows. What all had submitted before is completed.
  void retire(const Status& reason);
  // Ends the set for all members because something has gone wrong here.
  void break_off(const std::string& why) { negotiation_.break_off(why); }
  // Fails all open operations. The transport must have been aborted.
  void fail_all(const Status& reason);
  // The operations that failed, e.g. "allreduce of 'x'"; limited to the first ones.
  [[nodiscard]] const std::vector<std::string>& interrupted() const { return interrupted_; }

 private:
  [[nodiscard]] Events negotiation_events(Events events);
  [[nodiscard]] Replay::Events replay_events();

  // Submits what waited for names that are free now; returns whether there was any.
  bool submit_deferred(Time now);
  bool refuse_duplicates(std::vector<Submission>& submissions);
  // Unless something submitted earlier is still open; returns whether it has begun.
  bool begin_join();
  bool begin_leave();

  void handle(const ResponseList& responses, Time now);
  void execute(std::vector<BatchMember> members, BatchOrder order, Time now,
               const Contributions& contributions = {});
  void execute_again(Replay::Batch& batch, const Contributions& contributions);
  bool advance(Time now);
  void close(const Status& reason);

  const std::shared_ptr<const ProcessSetMembers> members_;
  const std::int64_t fusion_threshold_;
  const ExecutionContext context_;
  SetNegotiation negotiation_;
  Replay replay_;
  Batches batches_;
  DeferredSubmissions deferred_;
  bool join_waits_ = false;         // for earlier submissions that are deferred or undecided
  std::optional<Leaving> leaving_;  // and waits for the names below, which were deferred
  std::vector<std::string> leave_waits_for_;
  bool has_left_ = false;  // as requested by the application
  std::vector<std::string> interrupted_;
  Status retired_;  // why, once the set has been removed
};

}  // namespace rueda
