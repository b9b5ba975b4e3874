#include "coordinator/contribution.h"

#include <algorithm>
#include <cstring>

#include "reduce/combine.h"

namespace rueda {

std::optional<std::size_t> contributed_bytes(const ReplayPlan::Batch& batch) {
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
      default: return std::nullopt;
    }
  }
  return bytes;
}

bool can_be_combined(const ReplayPlan::Batch& batch) {
  return batch.front().response->request.collective == Collective::allreduce;
}

void contribute(const ReplayPlan::Batch& batch, int rank, std::byte* target) {
  for (const ReplayPlan::Member& member : batch) {
    const Submission& submission = *member.submission;
    const Request& request = submission.request;
    const bool is_broadcast = request.collective == Collective::broadcast;
    if (is_broadcast && request.root != rank) continue;
    const std::size_t bytes = request.bytes();
    if (bytes > 0) std::memcpy(target, is_broadcast ? submission.output : submission.input, bytes);
    target += bytes;
  }
}

namespace {

void combine(const ReplayPlan::Batch& batch, const Combination& combination,
             std::span<const std::byte* const> inputs, std::byte* target) {
  std::int64_t count = 0;
  for (const ReplayPlan::Member& member : batch) count += member.response->request.count();
  const Combiner combiner(combination);
  if (count > 0) combiner({&target, 1}, inputs, count, Stores::cached);
}

}  // namespace

void combine_contributions(const ReplayPlan::Batch& batch,
                           std::span<const std::byte* const> contributions, std::byte* target) {
  const Request& request = batch.front().response->request;
  combine(batch, {.dtype = request.dtype, .op = request.op, .prescale = request.prescale},
          contributions, target);
}

void combine_partial(const ReplayPlan::Batch& batch, std::span<const std::byte* const> partial,
                     int contributors, std::byte* target) {
  const Request& request = batch.front().response->request;
  Combination combination{.dtype = request.dtype, .op = request.op};
  if (contributors > 0) {
    if (request.op == ReduceOp::average) combination.divisor = contributors;
    combination.postscale = request.postscale;
  }
  combine(batch, combination, partial, target);
}

}  // namespace rueda
