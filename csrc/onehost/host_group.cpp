#include "onehost/host_group.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "transport/group_bootstrap.h"

namespace rueda {

namespace {

// Of HostMemory::form() and of measure_costs().
constexpr int forming_barriers = 3;
constexpr int measuring_barriers = 1;

}  // namespace

Expected<HostGroup> HostGroup::form(Bootstrap& world, const std::vector<int>& host_of,
                                    Time deadline) {
  HostGroup group;
  const int own = host_of[static_cast<std::size_t>(world.rank())];
  for (int rank = 0; rank < world.size(); ++rank) {
    if (host_of[static_cast<std::size_t>(rank)] == own) group.ranks_.push_back(rank);
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

}  // namespace rueda
