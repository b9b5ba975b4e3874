// The rounds of plans that this rank has begun and that are not over: those of which it has
// submitted some members, and those that it has joined and where it waits for the other ranks.
//
// Neither is waited for without end: see overdue().
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "coordinator/plan_table.h"

namespace rueda {

class OpenRounds {
 public:
  using Plans = PlanTable::Plans;

  // `pause`: between the submissions of a plan's members on this rank. `stall`: until the other
  // ranks have come; zero: any time.
  OpenRounds(Duration pause, Duration stall) : pause_(pause), stall_(stall) {}

  [[nodiscard]] bool empty() const { return collecting_.empty() && joined_.empty(); }
  [[nodiscard]] const Plans& collecting() const { return collecting_; }
  // In the order in which they have been joined.
  [[nodiscard]] const Plans& joined() const { return joined_; }
  [[nodiscard]] bool is_joined(const ReplayPlan* plan) const {
    return std::find(joined_.begin(), joined_.end(), plan) != joined_.end();
  }

  // Some members of the plan have been submitted.
  void collect(ReplayPlan& plan) { collecting_.push_back(&plan); }
  // All have been, and this rank has joined.
  void join(ReplayPlan& plan) {
    plan.joined = true;
    joined_.push_back(&plan);
  }
  // No more members are waited for.
  void stop_collecting(ReplayPlan& plan) { remove(collecting_, plan); }
  // The round is executed now: the next submissions are for the next one.
  void finish(ReplayPlan& plan) {
    remove(joined_, plan);
    plan.joined = false;
    plan.collected = 0;
    ++plan.round;
  }
  // The round does not take place on this rank. Returns what has been submitted for it.
  [[nodiscard]] std::vector<Submission> abandon(ReplayPlan& plan);

  // One that has been waited for too long. Null: there is none.
  [[nodiscard]] ReplayPlan* overdue(Time now) const;
  // When the next one will be.
  [[nodiscard]] std::optional<Time> next_deadline() const;

 private:
  static void remove(Plans& from, const ReplayPlan& plan) {
    const auto found = std::find(from.begin(), from.end(), &plan);
    if (found != from.end()) from.erase(found);
  }
  // The joined one that has waited longest, if waiting has an end. Null: none.
  [[nodiscard]] ReplayPlan* first_that_can_stall() const;

  const Duration pause_;
  const Duration stall_;
  Plans collecting_;
  Plans joined_;
};

}  // namespace rueda
