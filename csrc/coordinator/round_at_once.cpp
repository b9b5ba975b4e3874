#include "coordinator/round_at_once.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace rueda {

namespace {

bool fits(const Request& agreed, const RepeatedCall& call) {
  return agreed.dtype == call.dtype && agreed.op == call.op && agreed.prescale == call.prescale &&
         agreed.postscale == call.postscale && agreed.priority == 0 &&
         std::equal(agreed.shape.begin(), agreed.shape.end(), call.shape.begin(), call.shape.end());
}

const Request& request_of(const ReplayPlan& plan) {
  return plan.batches.front().front().response->request;
}

}  // namespace

// Only what the ranks send along, and what is known here to be the same on all: then a round is
// nothing but to copy, to join, and to combine.
void RoundAtOnce::prepare(ReplayPlan& plan) const {
  plan.at_once.reset();
  if (plan.members != 1 || plan.sent.empty() || memory_.spans_hosts()) return;
  const Request& request = request_of(plan);
  if (request.collective != Collective::allreduce || !request.group.empty()) return;
  plan.at_once.emplace(Combination{.dtype = request.dtype,
                                   .op = request.op,
                                   .prescale = request.prescale,
                                   .divisor = request.op == ReduceOp::average ? members_.size() : 1,
                                   .postscale = request.postscale});
}

bool RoundAtOnce::join(const RepeatedCall& call) {
  if (!open_.empty()) return false;
  const PlanTable::Where* const found = plans_.find(call.name);
  if (found == nullptr) return false;
  ReplayPlan& plan = *found->plan;
  if (plan.off || !plan.at_once) return false;
  const Request& agreed = request_of(plan);
  if (!fits(agreed, call)) return false;
  const std::size_t bytes = agreed.bytes();
  // Refused where it is submitted.
  if (bytes > 0 && (call.input == nullptr || call.output == nullptr)) return false;
  std::byte* const target = memory_.eager().offer(plan.place.slot, plan.round, plan.sent.back());
  if (target == nullptr) return false;
  if (bytes > 0) std::memcpy(target, call.input, bytes);
  const ReadinessTable::Joined joined = memory_.readiness().join(plan.place, plan.round);
  // Whoever takes the submission then learns the same.
  if (joined == ReadinessTable::Joined::off) return false;
  joined_ = &plan;
  metrics_.tensors_submitted.add(1);
  if (joined == ReadinessTable::Joined::completed) memory_.wake_others();
  return true;
}

bool RoundAtOnce::finish(const RepeatedCall& call) {
  const auto entry = memory_.readiness().read(memory_.log_position());
  if (!entry) return false;
  ReplayPlan& plan = *joined_;
  // Otherwise one has sent nothing along, and the submission is executed.
  if (!contributions_.find(plan, sent_)) return false;
  const Request& agreed = request_of(plan);
  sent_[static_cast<std::size_t>(members_.rank)] = call.input;
  const std::int64_t count = agreed.count();
  if (count > 0) {
    (*plan.at_once)({&call.output, 1}, sent_, count, Stores::cached);
  }
  memory_.move_in_log(memory_.log_position() + 1);
  ++plan.round;
  joined_ = nullptr;
  metrics_.plans_replayed.add(1);
  metrics_.plans_eager.add(1);
  const auto bytes = count * static_cast<std::int64_t>(size_of(agreed.dtype));
  Metrics::PerCollective& counted = metrics_.of(Collective::allreduce);
  counted.batches.add(1);
  counted.tensors.add(1);
  counted.tensor_bytes.add(bytes);
  counted.transfers.bytes_reduced.add(bytes);
  metrics_.tensors_completed.add(1);
  return true;
}

void RoundAtOnce::hand_in(const RepeatedCall& call, OpenHandle handle, Time now) {
  ReplayPlan& plan = *std::exchange(joined_, nullptr);
  ReplayPlan::Member& member = plan.batches.front().front();
  Submission& submission = member.submission.emplace();
  submission.handle = std::move(handle);
  submission.request = member.response->request;  // as the call is
  submission.input = call.input;
  submission.output = call.output;
  submission.submitted_at = submission.taken_at = plan.since = now;
  plan.collected = 1;
  open_.join(plan);
}

}  // namespace rueda
