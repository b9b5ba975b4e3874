// Rounds of small allreduces, without a submission: see Replay::join_at_once().
#include <algorithm>
#include <cstring>

#include "coordinator/replay.h"

namespace rueda {

// Only what the ranks send along, and what is known here to be the same on all: then a round is
// nothing but to copy, to join, and to combine.
void Replay::prepare_at_once(Plan& plan) const {
  plan.at_once.reset();
  if (plan.members != 1 || plan.sent.empty() || spans_hosts()) return;
  const Request& request = plan.batches.front().front().response->request;
  if (request.collective != Collective::allreduce || !request.group.empty()) return;
  plan.at_once.emplace(
      Combination{.dtype = request.dtype,
                  .op = request.op,
                  .prescale = request.prescale,
                  .divisor = request.op == ReduceOp::average ? members_->size() : 1,
                  .postscale = request.postscale});
}

bool Replay::fits(const Request& agreed, const RepeatedCall& call) {
  return agreed.dtype == call.dtype && agreed.op == call.op && agreed.prescale == call.prescale &&
         agreed.postscale == call.postscale && agreed.priority == 0 &&
         std::equal(agreed.shape.begin(), agreed.shape.end(), call.shape.begin(), call.shape.end());
}

bool Replay::join_at_once(const RepeatedCall& call) {
  if (!joined_.empty() || !collecting_.empty()) return false;
  const auto found = by_name_.find(call.name);
  if (found == by_name_.end()) return false;
  Plan& plan = *found->second.plan;
  if (plan.off || !plan.at_once) return false;
  const Request& agreed = plan.batches.front().front().response->request;
  if (!fits(agreed, call)) return false;
  const std::size_t bytes = agreed.bytes();
  std::byte* const target = eager_->offer(plan.place.slot, plan.round, plan.sent.back());
  if (target == nullptr) return false;
  if (bytes > 0) std::memcpy(target, call.input, bytes);
  const ReadinessTable::Joined joined = readiness_->join(plan.place, plan.round);
  // Whoever takes the submission then learns the same.
  if (joined == ReadinessTable::Joined::off) return false;
  at_once_ = &plan;
  if (joined == ReadinessTable::Joined::completed) wake_others();
  return true;
}

std::optional<std::size_t> Replay::finish_at_once(const RepeatedCall& call) {
  const auto entry = readiness_->read(read_);
  if (!entry) return std::nullopt;
  Plan& plan = *at_once_;
  // Otherwise one has sent nothing along, and the submission is executed.
  if (!is_at_hand(plan, contributions_)) return std::nullopt;
  const Request& agreed = plan.batches.front().front().response->request;
  contributions_[static_cast<std::size_t>(members_->rank)] = call.input;
  if (const std::int64_t count = agreed.count(); count > 0) {
    (*plan.at_once)({&call.output, 1}, contributions_, count, Stores::cached);
  }
  ++read_;
  ++plan.round;
  at_once_ = nullptr;
  metrics_.plans_replayed.add(1);
  metrics_.plans_eager.add(1);
  return agreed.bytes();
}

void Replay::hand_in(const RepeatedCall& call, OpenHandle handle, Time now) {
  Plan& plan = *std::exchange(at_once_, nullptr);
  Member& member = plan.batches.front().front();
  Submission& submission = member.submission.emplace();
  submission.handle = std::move(handle);
  submission.request = member.response->request;  // as the call is
  submission.input = call.input;
  submission.output = call.output;
  submission.submitted_at = submission.taken_at = plan.since = now;
  plan.collected = 1;
  plan.joined = true;
  joined_.push_back(&plan);
}

}  // namespace rueda
