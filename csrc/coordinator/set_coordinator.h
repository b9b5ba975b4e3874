// One process set at work on this rank: what is pending, its negotiation, and its batches in
// flight. Used by the coordinator thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/execution.h"
#include "coordinator/process_sets.h"
#include "coordinator/replay.h"
#include "coordinator/submission.h"
#include "core/options.h"
#include "plan/negotiator.h"
#include "plan/set_hosts.h"

namespace rueda {

class SetCoordinator {
 public:
  struct Events {
    // A message for another member (world rank).
    std::function<void(int peer, std::vector<std::byte> message)> send;
    // The members have agreed on something that changes the engine: add or remove a process set.
    std::function<void(const Response&, Submission)> apply_set_change;
    // Others have waited for a long time for `name`, which this rank has not submitted here.
    std::function<void(const std::string& name)> awaited_here;
    // `response` has failed on all members, not by this rank's refusal; its request carries what
    // the refusing rank said.
    std::function<void(const Response& response)> failed;
    // All members have joined: called before anyone hears of it.
    std::function<void()> joined;
    // Asks a member (world rank) where its application is, see hear_whereabouts(). May be empty.
    std::function<void(int peer)> ask_whereabouts;
  };

  // `parts`, `hosts` and `room`: as Batches has them.
  SetCoordinator(std::shared_ptr<const ProcessSetMembers> members, const HostParts& parts,
                 std::unique_ptr<const SetHosts> hosts, const Options& options,
                 const ExecutionContext& context, Transport& transport, Events events,
                 std::shared_ptr<ControlRoom> room = nullptr);

  void submit(std::vector<Submission> submissions, Time now);
  // As Replay::join_at_once() and what follows it. Only while nothing of the set is under way, and
  // nobody wants to see each step of an operation.
  [[nodiscard]] bool join_at_once(const RepeatedCall& call);
  [[nodiscard]] bool finish_at_once(const RepeatedCall& call);
  void hand_in(const RepeatedCall& call, OpenHandle handle, Time now) {
    replay_.hand_in(call, std::move(handle), now);
  }
  // Makes the operation `name` fail on all members, which this rank has not submitted here but to
  // `other_set`.
  void refuse(const std::string& name, const Status& why, int other_set, Time now);
  void join(OpenHandle handle);
  void leave();
  void receive(int peer, std::span<const std::byte> message, Time now);
  // What a member says of where it is.
  void hear_whereabouts(int peer, std::string text, Time now);

  // Negotiates, starts what has been agreed on and advances what is in flight, as far as possible
  // without blocking; returns whether anything happened.
  bool step(Time now);

  [[nodiscard]] const ProcessSetMembers& members() const { return *members_; }
  [[nodiscard]] const Batches& batches() const { return batches_; }
  [[nodiscard]] bool is_pending(const std::string& name) const {
    return pending_.contains(name) || replay_.holds(name);
  }
  // Whether batches are under way, or only the other members are waited for.
  // Or whether they still need this rank though the set has ended.
  [[nodiscard]] bool in_flight() const {
    return batches_.size() > 0 || replay_.waits() || (closed() && replay_.is_needed());
  }
  // Whether messages of other members are expected at any moment.
  [[nodiscard]] bool negotiates() const {
    return !pending_.empty() || join_handle_ || replay_.waits_for_hosts();
  }
  // Nothing more can be agreed on.
  [[nodiscard]] bool closed() const { return !closing().ok(); }
  // Why; ok while it goes on.
  [[nodiscard]] const Status& closing() const { return negotiator_.closed(); }
  // When step() should be called though nothing happens.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  // The set has been removed. What its members agreed on before is finished, also where this rank
  // does not know of it yet: the set ends in its own stream of responses.
  void retire(const Status& reason);
  // Fails everything that is open. The transport must have been aborted.
  void fail_all(const Status& reason);
  // What that was, e.g. "allreduce of 'x'"; the first of many.
  [[nodiscard]] const std::vector<std::string>& interrupted() const { return interrupted_; }

 private:
  void record(std::vector<Submission>& submissions);
  void record_stall(const ResponseList& responses);
  void submit_group(std::vector<Submission> submissions, Time now);
  void renegotiate(std::vector<Submission> submissions);
  // Whether the submissions have to wait until one of their names is free: it is refused, and the
  // answer has not come yet, or it is a number that has come round again.
  bool defer(std::vector<Submission>& submissions);
  [[nodiscard]] bool must_wait(const std::string& name) const;
  // Those whose names are free now; returns whether there were any.
  bool submit_deferred(Time now);
  // Unless something that was submitted before is still open; returns whether it has begun.
  bool begin_join();
  bool begin_leave();
  bool refuse_duplicates(std::vector<Submission>& submissions);
  void finish(Submission submission, const Status& status, OperationOutput output = {});
  void handle(ResponseList responses, Time now);
  void execute(const ResponseList& responses, const std::vector<std::size_t>& batch, Time now);
  void execute(std::vector<BatchMember> members, BatchOrder order, Time now,
               const Contributions& contributions = {});
  void execute_again(Replay::Batch& batch, const Contributions& contributions);
  void finish_barrier(Submission submission);
  [[nodiscard]] Replay::Events replay_events();
  [[nodiscard]] std::optional<int> member_of(int peer) const;
  [[nodiscard]] NegotiatorOptions negotiator_options(const Options& options) const;
  void mark_cycle(Time now);
  void record_answer(const std::string& name, Time now);
  void answer(const Response& response, Time now);
  void fail_pending(const Response& response, Time now);
  void close(const Status& reason);
  void note_interrupted(const std::string& operation);
  void add_pending(Submission submission);
  std::optional<Submission> take_pending(const std::string& name);
  bool advance(Time now);

  std::shared_ptr<const ProcessSetMembers> members_;
  std::int64_t fusion_threshold_;
  int patient_warnings_;  // how many of them are taken for slowness, not for a mistake
  ExecutionContext context_;
  Events events_;
  Negotiator negotiator_;
  Replay replay_;
  Batches batches_;

  std::unordered_map<std::string, Submission> pending_;  // not agreed on yet
  std::size_t pending_on_gpus_ = 0;                      // of these
  std::unordered_map<std::string, std::vector<std::vector<Submission>>> deferred_;  // by name
  std::unordered_map<std::string, int> warnings_;  // of names that only others have submitted
  OpenHandle join_handle_;
  bool join_waits_ = false;  // for what was submitted before and is deferred or undecided
  bool is_leaving_ = false;  // and waits for these, which had to wait for their numbers
  std::vector<std::string> leave_waits_for_;
  int next_persistent_ = 0;
  std::vector<std::string> interrupted_;
  Status retired_;        // why, once the set has been removed
  bool changed_ = false;  // since the last flush
  std::optional<Time> deadline_;
};

}  // namespace rueda
