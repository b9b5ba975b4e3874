#include "coordinator/set_room.h"

#include <algorithm>
#include <utility>

#include "coordinator/execution.h"
#include "coordinator/round_memory.h"
#include "core/strings.h"

namespace rueda {

namespace {

// The members here for which a set of these ranks, including this one, must reserve room.
struct Sharers {
  HostMembers members;
  bool spans_hosts = false;
};

Sharers sharers_of(const WorldLayout& layout, std::vector<int> ranks) {
  const Topology& topology = layout.topology;
  std::sort(ranks.begin(), ranks.end());
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), topology.rank);
  if (own == ranks.end() || *own != topology.rank) return {};
  const bool are_known = ranks.front() >= 0 && ranks.back() < topology.size;
  if (!are_known) return {};
  if (HostMembers all = layout.host.members(ranks)) return {std::move(all), false};
  HostParts parts = layout.host.parts(ranks, static_cast<int>(own - ranks.begin()));
  if (!layout.spans_hosts(parts)) return {};
  return {std::move(parts.own), true};
}

}  // namespace

Expected<std::shared_ptr<ControlRoom>> reserve_room(const WorldLayout& layout,
                                                    std::vector<int> ranks) {
  const Sharers sharers = sharers_of(layout, std::move(ranks));
  auto room = Batches::reserve(sharers.members, sharers.spans_hosts);
  if (room || !sharers.members) return room;
  return Status(ErrorCode::unsupported,
                str("rank ", layout.topology.rank,
                    " has no room for another process set in its host's shared memory: "
                    "remove sets that are no longer used"),
                layout.topology.rank);
}

void forgo_room(const WorldLayout& layout, int set_id, std::vector<int> ranks,
                const Options& options) {
  const Sharers sharers = sharers_of(layout, std::move(ranks));
  if (!sharers.members) return;
  Batches::forgo(sharers.members, sharers.spans_hosts, set_id);
  if (options.cache_capacity > 0) RoundMemory::forgo(sharers.members, set_id);
}

}  // namespace rueda
