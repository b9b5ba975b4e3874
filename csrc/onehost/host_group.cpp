#include "onehost/host_group.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/log.h"
#include "transport/group_bootstrap.h"

namespace rueda {

namespace {

// Of HostMemory::form() and measure_costs().
constexpr int forming_barriers = 3;
constexpr int measuring_barriers = 1;

}  // namespace

Expected<HostGroup> HostGroup::form(Bootstrap& world, const std::vector<int>& host_of,
                                    Time deadline) {
  HostGroup group;
  const int own = host_of[static_cast<std::size_t>(world.rank())];
  for (int rank = 0; rank < world.size(); ++rank) {
    const int host = host_of[static_cast<std::size_t>(rank)];
    if (host == own) group.ranks_.push_back(rank);
    const auto first = std::find(host_of.begin(), host_of.end(), host);
    group.first_of_part_.push_back(static_cast<int>(first - host_of.begin()));
  }
  GroupBootstrap bootstrap(world, group.ranks_, "host", forming_barriers);
  if (bootstrap.size() > 1) {
    auto formed = HostMemory::form(bootstrap, deadline);
    const Status lacking = formed.ok() ? formed.value()->no_direct_access() : formed.status();
    if (!lacking.ok()) log(LogLevel::info, lacking.to_string());
    group.obstacle_ = formed.ok() ? std::string() : formed.status().to_string();
    if (formed.ok()) group.memory_ = std::move(formed).value();
  }
  if (Status met = bootstrap.finish(deadline); !met.ok()) return met;
  return group;
}

Status HostGroup::measure(Bootstrap& world, Time deadline) {
  GroupBootstrap bootstrap(world, ranks_, "costs", measuring_barriers);
  Status measured;
  if (memory_) {
    auto costs = measure_costs(bootstrap, memory_, deadline);
    measured = costs.status();
    if (costs.ok()) costs_ = costs.value();
  }
  const Status met = bootstrap.finish(deadline);
  return measured.ok() ? met : measured;
}

void HostGroup::share_nothing(const std::vector<int>& world_ranks) {
  for (const int rank : world_ranks) {
    if (std::binary_search(ranks_.begin(), ranks_.end(), rank)) memory_.reset();
    if (first_of_part_.empty()) continue;
    const int first = first_of_part(rank);
    for (int other = 0; other < static_cast<int>(first_of_part_.size()); ++other) {
      int& part = first_of_part_[static_cast<std::size_t>(other)];
      if (part == first) part = other;
    }
  }
}

void HostGroup::for_each_end(const std::function<void(int world_rank, PeerEnd end)>& watch) const {
  for (int member = 0; memory_ && member < memory_->size(); ++member) {
    if (memory_->process_of(member) >= 0)
      watch(memory_->world_rank(member), memory_->end_of(member));
  }
}

int HostGroup::first_of_part(int world_rank) const {
  return first_of_part_.empty() ? world_rank : first_of_part_[static_cast<std::size_t>(world_rank)];
}

std::optional<int> HostGroup::rank_of(int world_rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), world_rank);
  if (!memory_ || found == ranks_.end() || *found != world_rank) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

HostMembers HostGroup::members(const std::vector<int>& world_ranks) const {
  HostMembers members{memory_, {}};
  for (const int world_rank : world_ranks) {
    const auto rank = rank_of(world_rank);
    if (!rank) return {};
    members.ranks.push_back(*rank);
  }
  return members;
}

HostParts HostGroup::parts(const std::vector<int>& world_ranks, int member) const {
  HostParts parts;
  const int own = first_of_part(world_ranks[static_cast<std::size_t>(member)]);
  std::map<int, std::size_t> known;  // first world rank of each part → its index
  for (int index = 0; index < static_cast<int>(world_ranks.size()); ++index) {
    const int first = first_of_part(world_ranks[static_cast<std::size_t>(index)]);
    const auto [part, is_new] = known.emplace(first, parts.members.size());
    if (is_new) parts.members.emplace_back();
    if (is_new) parts.leaders.push_back(index);
    parts.members[part->second].push_back(index);
  }
  parts.index = static_cast<int>(known.at(own));
  std::vector<int> own_ranks;
  for (const int index : parts.members[known.at(own)]) {
    if (index == member) parts.rank = static_cast<int>(own_ranks.size());
    own_ranks.push_back(world_ranks[static_cast<std::size_t>(index)]);
  }
  if (own_ranks.size() > 1) parts.own = members(own_ranks);
  return parts;
}

}  // namespace rueda
