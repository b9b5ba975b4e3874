#include "backend/stages.h"

#include <algorithm>
#include <utility>

#include "onehost/host_reduction.h"

namespace rueda {

HostPolicy policy_of_stages(const HostPolicy& policy) {
  HostPolicy stages = policy;
  stages.flat_limit = std::min(policy.flat_limit, stage_slot_bytes);
  stages.staged_limit = 0;
  return stages;
}

Lane lane_across(const Lane& lane, int ring) {
  Lane across = lane;
  across.members = &lane.hosts->across(ring);
  across.rank = lane.hosts->host();
  across.channel = nullptr;
  across.hosts = nullptr;
  return across;
}

Lane lane_of_part(Lane lane, std::int64_t part) {
  lane.tag = lane.tag_of(static_cast<std::uint64_t>(part));
  return lane;
}

std::uint64_t line_up(HostChannel* channel, std::int64_t collectives) {
  if (channel == nullptr || collectives == 0) return 0;
  const std::uint64_t first = channel->turns().line_up();
  for (std::int64_t i = 1; i < collectives; ++i) static_cast<void>(channel->turns().line_up());
  return first;
}

bool is_reachable_here(const Lane& lane, const std::byte* data, std::size_t bytes) {
  const HostChannel* channel = lane.before_links;
  return channel == nullptr || data == nullptr || channel->host().is_reachable(data, bytes);
}

std::unique_ptr<Operation> reduce_within(const Lane& lane, const HostPolicy& policy,
                                         const Reduction& reduction, std::vector<Piece> pieces,
                                         std::uint64_t ticket) {
  const ReduceOp op = reduction.op == ReduceOp::average ? ReduceOp::sum : reduction.op;
  const Combination combination{.dtype = reduction.dtype, .op = op, .prescale = reduction.prescale};
  // It is not known which ranks have joined, so one of these may have.
  const bool all_contribute = reduction.contributors == lane.size();
  auto collective = std::make_unique<HostReduction>(
      *lane.before_links, policy, combination, all_contribute ? lane.before_links->size() : 0,
      std::move(pieces), HostCollective::Begin::later);
  collective->count_in(*lane.counters);
  collective->start(ticket);
  return collective;
}

std::unique_ptr<Operation> reduce_slices(const Lane& lane, const HostPolicy& policy,
                                         const Reduction& reduction, const Piece& piece,
                                         const std::vector<Segment>& slices, std::uint64_t ticket) {
  const std::size_t element = size_of(reduction.dtype);
  std::vector<Piece> pieces;
  for (std::size_t index = 0; index < slices.size(); ++index) {
    const std::size_t offset = static_cast<std::size_t>(slices[index].offset) * element;
    const bool is_own = index == static_cast<std::size_t>(lane.hosts->rank());
    pieces.push_back({piece.input == nullptr ? nullptr : piece.input + offset,
                      is_own ? piece.output + offset : nullptr, slices[index].count});
  }
  return reduce_within(lane, policy, reduction, std::move(pieces), ticket);
}

std::unique_ptr<Operation> pull_within(const Lane& lane, const HostPolicy& policy,
                                       const std::byte* data, std::size_t bytes,
                                       std::vector<HostPull::Transfer> transfers,
                                       std::uint64_t ticket) {
  auto plan = [transfers = std::move(transfers)](const HostPull&) { return transfers; };
  auto collective = std::make_unique<HostPull>(*lane.after_links, policy, data, bytes,
                                               std::vector<std::int64_t>{}, std::move(plan),
                                               HostCollective::Begin::later);
  collective->count_in(*lane.counters);
  collective->start(ticket);
  return collective;
}

std::unique_ptr<Operation> gather_slices(const Lane& lane, const HostPolicy& policy,
                                         std::byte* output, std::size_t element,
                                         const std::vector<Segment>& slices, std::uint64_t ticket) {
  const auto rank = static_cast<std::size_t>(lane.hosts->rank());
  const auto bytes = [element](std::int64_t count) {
    return static_cast<std::size_t>(count) * element;
  };
  std::vector<HostPull::Transfer> transfers;
  for (std::size_t index = 0; index < slices.size(); ++index) {
    if (index == rank) continue;
    const Segment& slice = slices[index];
    transfers.push_back(
        {static_cast<int>(index), 0, output + bytes(slice.offset), bytes(slice.count)});
  }
  const Segment own = rank < slices.size() ? slices[rank] : Segment{};
  const std::byte* const data = rank < slices.size() ? output + bytes(own.offset) : nullptr;
  return pull_within(lane, policy, data, bytes(own.count), std::move(transfers), ticket);
}

}  // namespace rueda
