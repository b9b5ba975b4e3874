// Does again what the members of a process set have agreed on before, without negotiating it: see
// ReadinessTable.
//
// Every member derives the same plans from the same responses (PlanTable): a batch that all took
// part in is a plan, with its members in order. When this rank has submitted all members of a plan,
// each as it was agreed on, it joins the plan's next round (OpenRounds), and once all ranks have,
// the plan is executed.
// What cannot be replayed is handed back to be negotiated, and its plan is cancelled for all: a
// member that is submitted differently, a wait for a member while others are missing here, a pause
// in the submission of members, a round for which others have not come in a long time.
//
// What a plan exchanges is sent along when a rank joins, where it is small (RoundContributions):
// then the plan's batches are over as soon as they are executed.
//
// A plan that was cancelled is replaced when its members have been negotiated again.
//
// The call of a small allreduce that is a plan by itself needs no submission while all ranks come
// within a moment (RoundAtOnce). Only if the others take longer does it become a submission, which
// has joined.
//
// Of a set that spans hosts, the first member on each leads the others there (see RoundLeader). A
// round that all of them have joined is reported, and executed when all hosts are ready. If it is
// cancelled in between, it is undecided: its members wait for what all hosts decide. What is on
// GPUs is negotiated each time.
//
// What runs on GPUs must be enqueued in one order on all ranks, whether it is replayed or
// negotiated, or collectives wait for each other there. So a rank that asks for anything on GPUs to
// be negotiated cancels the rounds there that it has joined and that are not decided, and joins
// none until it has executed the answer. Of a round that is decided, then, no rank can have joined
// before it asked and another one after it had the answer. Either all joined before they asked: the
// rank that decided it entered it into the log before it asked, too, so that all read of it before
// the answer can have come to them. Or all joined after they had executed the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/eager.h"
#include "coordinator/metrics.h"
#include "coordinator/plan_table.h"
#include "coordinator/process_sets.h"
#include "coordinator/round_at_once.h"
#include "coordinator/round_contributions.h"
#include "coordinator/round_leader.h"
#include "coordinator/round_memory.h"
#include "coordinator/submission.h"
#include "onehost/host_group.h"
#include "onehost/readiness_table.h"
#include "plan/fusion_plan.h"
#include "plan/response.h"

namespace rueda {

class Replay {
 public:
  using Member = ReplayPlan::Member;
  using Batch = ReplayPlan::Batch;

  struct Options {
    int plans = 1024;                   // that are kept; more replace the oldest ones
    Duration pause{};                   // between the submissions of a plan's members on this rank
    Duration stall{};                   // until a round goes back to be negotiated; zero: never
    std::int64_t fusion_threshold = 0;  // of rounds that several hosts decide together
  };

  struct Events {
    // To be negotiated after all: an operation, or a whole group.
    std::function<void(std::vector<Submission>)> negotiate;
    // All ranks execute these now, in this order. Every member has its submission, to be moved
    // away.
    std::function<void(Batch&, const Contributions&)> execute;
    // Whether a batch of so many bytes may be sent along; the same on all ranks.
    std::function<bool(std::size_t bytes)> may_be_eager;
    // For the member that leads another host.
    std::function<void(int member, std::vector<std::byte> message)> send;
  };

  // The first member on each host makes the readiness table, before it negotiates anything. Without
  // room for it, or with plans = 0, nothing is ever replayed.
  Replay(HostParts parts, std::shared_ptr<const ProcessSetMembers> members, const Options& options,
         Metrics& metrics, Events events);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // --- Submissions

  // An operation, or a whole group. False: it is to be negotiated. `gpus_wait`: something on GPUs
  // is being negotiated.
  bool take(std::vector<Submission>& submissions, Time now, bool gpus_wait);
  // Whether anything has been taken that is neither executed nor handed back.
  [[nodiscard]] bool holds_any() const { return !open_.empty(); }
  // The same of `name`.
  [[nodiscard]] bool holds(const std::string& name) const {
    const PlanTable::Where* const found = plans_.find(name);
    return found != nullptr && found->member().submission;
  }
  // For calls that need no submission. What is under way there comes before anything else.
  [[nodiscard]] RoundAtOnce& at_once() { return at_once_; }
  // Hands it back to be negotiated. Null when that is done; otherwise it is about to be executed.
  [[nodiscard]] Submission* recall(const std::string& name);

  // Before this rank asks for anything on GPUs to be negotiated: the rounds there that it has
  // joined and that are not decided.
  void cancel_gpu_rounds();
  // From now on this rank takes nothing and calls all plans off, also those to come: it joins,
  // leaves, or the set has ended.
  void suspend();
  void resume() { suspended_ = false; }
  // Whether this rank holds a round that it has cancelled, and that all hosts are to decide or that
  // it has yet to hand back.
  [[nodiscard]] bool is_undecided() const;
  // The set has ended on this rank.
  void close();
  // All that is held. Other hosts are not waited for any more.
  [[nodiscard]] std::vector<Submission> give_up();

  // --- What the negotiation has agreed on: both for all responses, in the same order on all ranks

  // Ends the plans that a response is about. Before it is answered.
  void forget(const Response& response);
  // After `responses` have been answered: makes plans of their batches. `is_pending`: whether this
  // rank has already submitted a name anew, to the negotiation.
  void learn(const ResponseList& responses, std::span<const Fusion> batches,
             const std::function<bool(const std::string&)>& is_pending);

  // --- Progress

  // What the leader of another host has sent; false for what no leader sends.
  [[nodiscard]] bool receive(int member, std::span<const std::byte> message);
  // Reads the readiness table; returns whether anything happened. `load`: of what is under way,
  // which rounds may wait for, to be fused.
  bool step(Time now, const Load& load = {});
  // Whether this rank waits for the others.
  [[nodiscard]] bool waits() const { return !open_.joined().empty(); }
  // Whether it waits for a message.
  [[nodiscard]] bool waits_for_hosts() const { return leader_ && leader_->waits(); }
  // After close(): whether other hosts still need this rank.
  [[nodiscard]] bool is_needed() const { return leader_ && leader_->is_needed(); }
  // When step() should be called though nothing happens.
  [[nodiscard]] std::optional<Time> next_deadline() const { return open_.next_deadline(); }

 private:
  using Plan = ReplayPlan;
  using Plans = PlanTable::Plans;
  using Audience = ReadinessTable::Audience;

  void join(Plan& plan);
  bool read_log();
  void run(Plan& plan);
  void run_fused(const Plans& plans);
  bool release_cancelled();
  bool lead(const Load& load);
  // Calls it off, and hands back what it holds unless it is decided, or all hosts are to decide.
  void cancel(Plan& plan, Audience audience = Audience::all_hosts);
  void release(Plan& plan);
  void forget(Plan& plan);

  const std::shared_ptr<const ProcessSetMembers> members_;
  const Options options_;
  Metrics& metrics_;
  const Events events_;
  RoundMemory memory_;
  PlanTable plans_;
  RoundContributions contributions_;
  std::optional<RoundLeader> leader_;  // where the set spans hosts, on the first member of each
  OpenRounds open_;
  RoundAtOnce at_once_;
  std::uint64_t calls_off_seen_ = 0;
  std::vector<const std::byte*> sent_;  // with the round that is being executed
  std::vector<Member*> taken_;          // only within take()
  bool suspended_ = false;
  bool calls_off_gpus_ = false;  // at this moment
};

}  // namespace rueda
