#include "coordinator/open_rounds.h"

namespace rueda {

std::vector<Submission> OpenRounds::abandon(ReplayPlan& plan) {
  remove(collecting_, plan);
  remove(joined_, plan);
  plan.joined = false;
  plan.collected = 0;
  return plan.take_submissions();
}

ReplayPlan* OpenRounds::first_that_can_stall() const {
  const bool can = stall_ > Duration::zero() && !joined_.empty() && !joined_.front()->off;
  return can ? joined_.front() : nullptr;
}

ReplayPlan* OpenRounds::overdue(Time now) const {
  for (ReplayPlan* plan : collecting_) {
    if (now - plan->since >= pause_ || plan->is_awaited()) return plan;
  }
  ReplayPlan* const joined = first_that_can_stall();
  return joined != nullptr && now - joined->since >= stall_ ? joined : nullptr;
}

std::optional<Time> OpenRounds::next_deadline() const {
  std::optional<Time> earliest;
  const auto consider = [&earliest](Time due) {
    if (!earliest || due < *earliest) earliest = due;
  };
  for (const ReplayPlan* plan : collecting_) consider(plan->since + pause_);
  if (const ReplayPlan* joined = first_that_can_stall()) consider(joined->since + stall_);
  return earliest;
}

}  // namespace rueda
