// The plans of a process set: batches that all its members took part in and that can be replayed.
// PlanTable has all of them, OpenRounds those being replayed.
//
// Every member creates and forgets the same plans in the same order, so that a plan has the same
// place in the readiness table everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/collective_at_once.h"
#include "coordinator/submission.h"
#include "onehost/readiness_table.h"
#include "plan/fusion_plan.h"
#include "plan/load.h"
#include "plan/response.h"

namespace rueda {

struct ReplayPlan {
  struct Member {
    std::shared_ptr<const Response> response;
    std::optional<Submission> submission;  // once this rank has submitted it for the next round
  };
  using Batch = std::vector<Member>;

  ReadinessTable::Plan place;
  std::vector<Batch> batches;
  Urgency urgency;  // the highest priority of its members, and the sum of their bytes
  std::size_t members = 0;
  std::size_t collected = 0;
  std::uint64_t round = 0;  // number of rounds executed so far
  Time since;               // of the last submission
  bool joined = false;
  bool off = false;
  bool on_gpu = false;
  bool forgotten = false;  // except for its log entry, which is about to come
  // Offset of each batch in the data sent along, and the end; empty: nothing is sent along.
  std::vector<std::size_t> sent;
  // For a plan of one tensor for which RoundAtOnce may be tried.
  std::optional<CollectiveAtOnce> at_once;

  [[nodiscard]] std::vector<Submission> take_submissions();
  // Whether a thread waits for one of its submissions.
  [[nodiscard]] bool is_awaited() const;
};

// Whether a request matches what was agreed on. `own_rank`: this rank's in the set.
[[nodiscard]] bool fits(const Response& agreed, const Request& request, int own_rank);

// Which of the batches that were agreed on together form one plan: those with members of the same
// group, since a group is replayed as a whole.
[[nodiscard]] std::vector<std::vector<const Fusion*>> batches_of_plans(
    const ResponseList& responses, std::span<const Fusion> batches);
// Whether they can form one: they are complete groups that all ranks took part in.
[[nodiscard]] bool can_be_planned(const ResponseList& responses,
                                  std::span<const Fusion* const> batches);

class PlanTable {
 public:
  using Plans = std::vector<ReplayPlan*>;
  struct Where {
    ReplayPlan* plan;
    std::size_t batch;
    std::size_t index;
    [[nodiscard]] ReplayPlan::Member& member() const { return plan->batches[batch][index]; }
  };

  // Sets the number of slots of the readiness table that may be used.
  void open(int slots);

  [[nodiscard]] bool has_none() const { return by_name_.empty(); }
  [[nodiscard]] std::size_t size() const { return plans_.size(); }
  // Oldest first.
  [[nodiscard]] const std::deque<std::unique_ptr<ReplayPlan>>& all() const { return plans_; }
  // Null if no plan has a member of that name.
  [[nodiscard]] const Where* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] ReplayPlan* in_slot(int slot) const {
    return by_slot_[static_cast<std::size_t>(slot)];
  }
  // Plans with a member of the group, in the order in which their slots are reused, which must be
  // the same on all ranks.
  [[nodiscard]] Plans of_group(const std::string& group) const;

  ReplayPlan& add(const ResponseList& responses, std::span<const Fusion* const> batches);
  // It accepts no more submissions. A round that was joined stays until bury().
  void forget(ReplayPlan& plan);
  void bury(ReplayPlan& plan);

 private:
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };

  std::deque<std::unique_ptr<ReplayPlan>> plans_;
  std::vector<std::unique_ptr<ReplayPlan>> last_rounds_;  // forgotten plans
  Plans by_slot_;
  std::deque<int> free_slots_;
  std::unordered_map<std::string, Where, NameHash, std::equal_to<>> by_name_;
  std::uint64_t next_plan_ = 1;
};

// The rounds of plans that this rank has begun and that have not ended: those for which it has
// submitted some members, and those that it has joined and whose other ranks it awaits.
//
// Neither waits forever: see overdue().
class OpenRounds {
 public:
  using Plans = PlanTable::Plans;

  // `pause`: the longest time between submissions of a plan's members on this rank. `stall`: until
  // the other ranks must have joined, at present; zero or empty: no limit.
  OpenRounds(Duration pause, std::function<Duration()> stall)
      : pause_(pause), stall_(std::move(stall)) {}

  [[nodiscard]] bool empty() const { return collecting_.empty() && joined_.empty(); }
  [[nodiscard]] const Plans& collecting() const { return collecting_; }
  // In the order in which they were joined.
  [[nodiscard]] const Plans& joined() const { return joined_; }
  [[nodiscard]] bool is_joined(const ReplayPlan* plan) const {
    return std::find(joined_.begin(), joined_.end(), plan) != joined_.end();
  }

  // Some members of the plan have been submitted.
  void collect(ReplayPlan& plan) { collecting_.push_back(&plan); }
  // All have been submitted, and this rank has joined.
  void join(ReplayPlan& plan) {
    plan.joined = true;
    joined_.push_back(&plan);
  }
  // Stops waiting for more members.
  void stop_collecting(ReplayPlan& plan) { remove(collecting_, plan); }
  // The round is executed now: further submissions are for the next one.
  void finish(ReplayPlan& plan) {
    remove(joined_, plan);
    plan.joined = false;
    plan.collected = 0;
    ++plan.round;
  }
  // The round does not take place on this rank. Returns its submissions.
  [[nodiscard]] std::vector<Submission> abandon(ReplayPlan& plan);

  // A plan that has been waited for too long, or null.
  [[nodiscard]] ReplayPlan* overdue(Time now) const;
  // When the next one becomes overdue.
  [[nodiscard]] std::optional<Time> next_deadline() const;

 private:
  static void remove(Plans& from, const ReplayPlan& plan) {
    const auto found = std::find(from.begin(), from.end(), &plan);
    if (found != from.end()) from.erase(found);
  }
  // The joined plan that has waited longest; or null.
  [[nodiscard]] ReplayPlan* first_that_can_stall() const;
  // When it has waited for too long; empty if there is none or waits are not limited.
  [[nodiscard]] std::optional<Time> when_stalled() const;

  const Duration pause_;
  const std::function<Duration()> stall_;
  Plans collecting_;
  Plans joined_;
};

}  // namespace rueda
