// Replays what the members of a process set have agreed on before, without negotiating it: see
// ReadinessTable.
//
// Every member derives the same plans from the same responses (PlanTable): a batch that all took
// part in becomes a plan, with its members in order. When this rank has submitted all members of a
// plan, each as it was agreed on, it joins the plan's next round (OpenRounds). Once all ranks have
// joined, the plan is executed. What cannot be replayed is handed back for negotiation, and its
// plan is cancelled for all: a member that is submitted differently, a wait for a member while
// others are missing here, a pause in the submission of members, a round that other ranks have not
// joined for a long time.
//
// If a plan's data is small, each rank sends it along when it joins (RoundContributions): the
// plan's batches then complete as soon as they are executed.
//
// A plan that was cancelled is replaced when its members have been negotiated again.
//
// A small collective that is a plan of its own needs no submission if all ranks arrive within a
// moment (RoundAtOnce). Only if the others take longer does the call become a submission, which has
// already joined.
//
// In a set that spans hosts, the first member on each host is its leader (see RoundLeader). A round
// that all members of a host have joined is reported, and is executed when all hosts are ready. If
// it is cancelled in between, it is undecided: its members wait for what all hosts decide.
// Operations on GPUs are negotiated each time there.
//
// GPU operations, replayed or negotiated, must be enqueued in one order on all ranks, or the
// collectives wait for each other on the GPUs. Therefore, a rank that asks for anything on GPUs to
// be negotiated cancels the undecided GPU rounds that it has joined, and joins none until it has
// executed the answer. Then no rank can have joined a decided round before it asked, and another
// after it had the answer. Either all joined before they asked: the rank that decided the round
// entered it into the log before it asked, so all ranks read of it before the answer can have
// reached them. Or all joined after they had executed the answer.
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
    int plans = 1024;  // kept at most; newer ones replace the oldest
    Duration pause{};  // between the submissions of a plan's members on this rank
    // Until a round is negotiated instead; may change at any time; zero or empty: never.
    std::function<Duration()> stall;
    std::int64_t fusion_threshold = 0;  // for rounds that several hosts decide together
  };

  struct Events {
    // Negotiates an operation or a whole group after all.
    std::function<void(std::vector<Submission>)> negotiate;
    // Executes a batch, as all ranks do now, in this order. Every member has its submission, to be
    // moved from.
    std::function<void(Batch&, const Contributions&)> execute;
    // Whether a batch of this many bytes may be sent along; the same on all ranks.
    std::function<bool(std::size_t bytes)> may_be_eager;
    // Sends to the leader of another host.
    std::function<void(int member, std::vector<std::byte> message)> send;
  };

  // The first member on each host creates the readiness table, before it negotiates anything.
  // Without room for it, or with plans = 0, nothing is ever replayed.
  Replay(HostParts parts, std::shared_ptr<const ProcessSetMembers> members, const Options& options,
         Metrics& metrics, Events events);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // --- Submissions

  // Takes an operation or a whole group. False: it must be negotiated. `gpus_wait`: something on
  // GPUs is being negotiated.
  bool take(std::vector<Submission>& submissions, Time now, bool gpus_wait);
  // Whether anything taken is neither executed nor handed back.
  [[nodiscard]] bool holds_any() const { return !open_.empty(); }
  // The same for `name`.
  [[nodiscard]] bool holds(const std::string& name) const {
    const PlanTable::Where* const found = plans_.find(name);
    return found != nullptr && found->member().submission;
  }
  // For calls that need no submission. Whatever is in progress there comes first.
  [[nodiscard]] RoundAtOnce& at_once() { return at_once_; }
  // Hands it back for negotiation. Null: done; otherwise it is about to be executed.
  [[nodiscard]] Submission* recall(const std::string& name);

  // Cancels the undecided GPU rounds that it has joined, before anything on GPUs is negotiated.
  void cancel_gpu_rounds();
  // From now on this rank takes nothing and cancels all plans, including future ones: it joins,
  // leaves, or the set has ended.
  void suspend();
  void resume() { suspended_ = false; }
  // Whether this rank holds a round that it has cancelled, and that all hosts must decide or that
  // it has yet to hand back.
  [[nodiscard]] bool is_undecided() const;
  // The set has ended on this rank.
  void close();
  // Returns everything held. Stops waiting for other hosts.
  [[nodiscard]] std::vector<Submission> give_up();

  // --- What was negotiated: both for all responses, in the same order on all ranks

  // Ends the plans affected by a response. Before it is answered.
  void forget(const Response& response);
  // After `responses` have been answered: makes plans of their batches. `is_pending`: whether this
  // rank has already submitted a name to the negotiation again.
  void learn(const ResponseList& responses, std::span<const Fusion> batches,
             const std::function<bool(const std::string&)>& is_pending);

  // --- Progress

  // Receives from the leader of another host; false if no leader sends such a message.
  [[nodiscard]] bool receive(int member, std::span<const std::byte> message);
  // Reads the readiness table; returns whether anything happened. `load`: what is in flight; rounds
  // may wait for it so that they can be fused.
  bool step(Time now, const Load& load = {});
  // Whether this rank waits for the others.
  [[nodiscard]] bool waits() const { return !open_.joined().empty(); }
  // Whether it waits for a message.
  [[nodiscard]] bool waits_for_hosts() const { return leader_ && leader_->waits(); }
  // After close(): whether other hosts still need this rank.
  [[nodiscard]] bool is_needed() const { return leader_ && leader_->is_needed(); }
  // When step() should be called even if nothing happens.
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
  // Cancels the plan, and hands back what it holds unless it is decided or all hosts must decide.
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
  std::optional<RoundLeader> leader_;  // on the first member of each host, if the set spans hosts
  OpenRounds open_;
  RoundAtOnce at_once_;
  std::uint64_t calls_off_seen_ = 0;
  std::vector<const std::byte*> sent_;  // with the round that is being executed
  std::vector<Member*> taken_;          // only within take()
  bool suspended_ = false;
  bool calls_off_gpus_ = false;  // at this moment
};

}  // namespace rueda
