#include "coordinator/round_at_once.h"

#include <cstdint>
#include <utility>

namespace rueda {

namespace {

const Response& agreed_in(const ReplayPlan& plan) {
  return *plan.batches.front().front().response;
}

}  // namespace

// Only plans whose data is all sent along and which are known here to be the same on all ranks:
// such a round is just copy, join, and combine.
void RoundAtOnce::prepare(ReplayPlan& plan) const {
  plan.at_once.reset();
  if (plan.members != 1 || plan.sent.empty() || memory_.spans_hosts()) return;
  plan.at_once = CollectiveAtOnce::of(agreed_in(plan), members_, plan.sent.back());
}

bool RoundAtOnce::join(const RepeatedCall& call) {
  if (!open_.empty()) return false;
  const PlanTable::Where* const found = plans_.find(call.name);
  if (found == nullptr) return false;
  ReplayPlan& plan = *found->plan;
  // A call that does not fit is refused when it is submitted, or executed in another way.
  if (plan.off || !plan.at_once || !plan.at_once->fits(call)) return false;
  std::byte* const target = memory_.eager().offer(plan.place.slot, plan.round, plan.sent.back(),
                                                  plan.at_once->contributed(call));
  if (target == nullptr) return false;
  plan.at_once->contribute(call, target);
  const ReadinessTable::Joined joined = memory_.readiness().join(plan.place, plan.round);
  // The call's submission then finds the same.
  if (joined == ReadinessTable::Joined::off) return false;
  joined_ = &plan;
  metrics_.tensors_submitted.add(1);
  if (joined == ReadinessTable::Joined::completed) memory_.wake_others();
  return true;
}

RoundAtOnce::Is RoundAtOnce::finish(const RepeatedCall& call) {
  const auto entry = memory_.readiness().read(memory_.log_position());
  if (!entry) return Is::open;
  ReplayPlan& plan = *joined_;
  // Otherwise some rank has sent nothing along, or the result does not fit.
  if (!contributions_.find(plan, sent_) || !plan.at_once->finish(call, sent_)) {
    return Is::to_be_executed;
  }
  memory_.move_in_log(memory_.log_position() + 1);
  ++plan.round;
  joined_ = nullptr;
  metrics_.plans_replayed.add(1);
  metrics_.plans_eager.add(1);
  plan.at_once->count(call, metrics_);
  metrics_.tensors_completed.add(1);
  return Is::done;
}

void RoundAtOnce::hand_in(const RepeatedCall& call, OpenHandle handle, Time now) {
  ReplayPlan& plan = *std::exchange(joined_, nullptr);
  ReplayPlan::Member& member = plan.batches.front().front();
  Submission& submission = member.submission.emplace();
  submission.handle = std::move(handle);
  submission.request = plan.at_once->request_of(call);
  submission.rows = plan.at_once->rows_of(call);
  submission.input = call.input;
  submission.output = call.output;
  submission.submitted_at = submission.taken_at = plan.since = now;
  plan.collected = 1;
  open_.join(plan);
}

}  // namespace rueda
