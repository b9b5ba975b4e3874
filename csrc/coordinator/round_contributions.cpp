#include "coordinator/round_contributions.h"

#include <cstddef>
#include <utility>

#include "coordinator/contribution.h"

namespace rueda {

// What is to be exchanged must have a length that all know.
void RoundContributions::prepare(ReplayPlan& plan) {
  plan.sent = {0};
  for (const ReplayPlan::Batch& batch : plan.batches) {
    const auto bytes = contributed_bytes(batch);
    if (!bytes || *bytes > EagerExchange::capacity || !may_be_eager_(*bytes) ||
        (memory_.spans_hosts() && !can_be_combined(batch))) {
      return plan.sent.clear();
    }
    plan.sent.push_back(round_up(plan.sent.back() + *bytes, alignof(std::max_align_t)));
  }
  if (plan.sent.back() > EagerExchange::capacity) return plan.sent.clear();
  memory_.eager().reserve(plan.place.slot, plan.sent.back());
}

void RoundContributions::send(const ReplayPlan& plan) {
  if (plan.sent.empty()) return;
  std::byte* const target = memory_.eager().offer(plan.place.slot, plan.round, plan.sent.back());
  for (std::size_t batch = 0; target != nullptr && batch < plan.batches.size(); ++batch) {
    contribute(plan.batches[batch], members_.rank, target + plan.sent[batch]);
  }
}

RoundLeader::Along RoundContributions::along(const PlanTable& plans) {
  const auto plan_at = [&plans](ReadinessTable::Plan place) -> const ReplayPlan& {
    return *plans.in_slot(place.slot);
  };
  return {[=, this](ReadinessTable::Plan place) { return collect_here(plan_at(place)); },
          [=, this](ReadinessTable::Plan place, const std::vector<Bytes>& partial, bool is_result) {
            return combine(plan_at(place), partial, is_result);
          },
          [=, this](ReadinessTable::Plan place, const Bytes& result) {
            const ReplayPlan& plan = plan_at(place);
            if (!plan.sent.empty()) memory_.eager().hand_out(place.slot, plan.round, result);
          }};
}

// By the leader, which has joined the round, too.
RoundAgreement::Bytes RoundContributions::collect_here(const ReplayPlan& plan) {
  std::vector<const std::byte*> sent;
  if (plan.sent.empty() ||
      !memory_.eager().collect_here(plan.place.slot, plan.round, plan.sent.back(), sent)) {
    return {};
  }
  Bytes partial(plan.sent.back());
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    std::vector<const std::byte*> contributions = sent;
    for (const std::byte*& contribution : contributions) contribution += plan.sent[batch];
    combine_contributions(plan.batches[batch], contributions, partial.data() + plan.sent[batch]);
  }
  return partial;
}

RoundAgreement::Bytes RoundContributions::combine(const ReplayPlan& plan,
                                                  const std::vector<Bytes>& partial,
                                                  bool is_result) const {
  if (partial.front().size() != plan.sent.back()) return {};
  Bytes combined(partial.front().size());
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    std::vector<const std::byte*> inputs;
    for (const auto& bytes : partial) inputs.push_back(bytes.data() + plan.sent[batch]);
    combine_partial(plan.batches[batch], inputs, is_result ? members_.size() : 0,
                    combined.data() + plan.sent[batch]);
  }
  return combined;
}

}  // namespace rueda
