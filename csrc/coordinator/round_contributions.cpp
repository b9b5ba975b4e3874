#include "coordinator/round_contributions.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "reduce/combine.h"

namespace rueda {

namespace {

// The largest contribution of any rank, which can be at most `most`; nothing if the batch is not
// exchanged in its original form: on GPUs, in a narrower type, compressed, or with leaves.
std::optional<std::size_t> contributed_bytes(const ReplayPlan::Batch& batch, std::size_t most) {
  std::size_t bytes = 0;
  for (const ReplayPlan::Member& member : batch) {
    const Response& agreed = *member.response;
    const Request& request = agreed.request;
    const bool is_compressed = request.compression.codec != CodecKind::none;
    if (request.on_gpu || request.wire || is_compressed || !request.leaf_ranks.empty())
      return std::nullopt;
    switch (request.collective) {
      case Collective::allreduce:
      case Collective::reduce_scatter:
      case Collective::broadcast: bytes += request.bytes(); break;
      case Collective::allgather:
        bytes += static_cast<std::size_t>(
                     *std::max_element(agreed.first_extents.begin(), agreed.first_extents.end())) *
                 request.row_bytes();
        break;
      // Each rank has its own size. A rank that has more sends nothing along.
      case Collective::alltoall: bytes += most; break;
      default: return std::nullopt;
    }
  }
  return bytes;
}

// Whether contributions can be combined on their way.
bool can_be_combined(const ReplayPlan::Batch& batch) {
  return batch.front().response->request.collective == Collective::allreduce;
}

// Size of this rank's contribution. Every member has its submission.
std::size_t own_bytes(const ReplayPlan& plan) {
  const Submission& first = *plan.batches.front().front().submission;
  if (first.request.collective != Collective::alltoall) return plan.sent.back();
  return EagerRows::bytes(static_cast<int>(first.rows.size())) + first.request.bytes();
}

// Copies the contribution of member `rank`. Every member of the batch has its submission.
void contribute(const ReplayPlan::Batch& batch, int rank, std::byte* target) {
  for (const ReplayPlan::Member& member : batch) {
    const Submission& submission = *member.submission;
    const Request& request = submission.request;
    const bool is_broadcast = request.collective == Collective::broadcast;
    if (is_broadcast && request.root != rank) continue;
    if (request.collective == Collective::alltoall) {
      target = EagerRows::put(submission.rows, target);
    }
    const std::size_t bytes = request.bytes();
    if (bytes > 0) std::memcpy(target, is_broadcast ? submission.output : submission.input, bytes);
    target += bytes;
  }
}

void combine_all(const ReplayPlan::Batch& batch, const Combination& combination,
                 std::span<const std::byte* const> inputs, std::byte* target) {
  std::int64_t count = 0;
  for (const ReplayPlan::Member& member : batch) count += member.response->request.count();
  const Combiner combiner(combination);
  if (count > 0) combiner({&target, 1}, inputs, count, Stores::cached);
}

// For a batch that can be combined. Each of `contributions` and the target has contributed_bytes().
// First, the contributions of one host's members are combined as copied.
void combine_contributions(const ReplayPlan::Batch& batch,
                           std::span<const std::byte* const> contributions, std::byte* target) {
  const Request& request = batch.front().response->request;
  combine_all(batch, {.dtype = request.dtype, .op = request.op, .prescale = request.prescale},
              contributions, target);
}

// Then the results of that are combined. `contributors`: of the whole set, once all are included;
// otherwise 0. 16-bit floats are rounded each time.
void combine_partial(const ReplayPlan::Batch& batch, std::span<const std::byte* const> partial,
                     int contributors, std::byte* target) {
  const Request& request = batch.front().response->request;
  Combination combination{.dtype = request.dtype, .op = request.op};
  if (contributors > 0) {
    if (request.op == ReduceOp::average) combination.divisor = contributors;
    combination.postscale = request.postscale;
  }
  combine_all(batch, combination, partial, target);
}

}  // namespace

// Data that is exchanged must have a length that all ranks know.
void RoundContributions::prepare(ReplayPlan& plan) {
  plan.sent = {0};
  std::size_t most = EagerExchange::capacity;
  while (most > 0 && !may_be_eager_(most)) most /= 2;
  for (const ReplayPlan::Batch& batch : plan.batches) {
    const auto bytes = contributed_bytes(batch, most);
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
  EagerExchange& eager = memory_.eager();
  const std::size_t bytes = own_bytes(plan);
  if (bytes > plan.sent.back()) return eager.withdraw(plan.place.slot, plan.round);
  std::byte* const target = eager.offer(plan.place.slot, plan.round, plan.sent.back(), bytes);
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

// Called by the leader, which has joined the round, too.
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
