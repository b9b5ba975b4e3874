#include "backend/gpu/hierarchy.h"

#include <algorithm>
#include <map>

namespace rueda {

Hierarchy hierarchy_of(const std::vector<int>& members, int rank, const std::vector<int>& host_of) {
  std::map<int, std::vector<int>> hosts;
  const auto host = [&](std::size_t member) {
    return host_of[static_cast<std::size_t>(members[member])];
  };
  for (std::size_t i = 0; i < members.size(); ++i) hosts[host(i)].push_back(static_cast<int>(i));

  Hierarchy found;
  found.local = hosts[host(static_cast<std::size_t>(rank))];
  found.local_rank = static_cast<int>(std::find(found.local.begin(), found.local.end(), rank) -
                                      found.local.begin());
  found.slices = static_cast<int>(members.size());
  for (const auto& [number, ranks] : hosts) {
    found.slices = std::min(found.slices, static_cast<int>(ranks.size()));
  }
  if (!found.carries_slice()) return found;
  for (const auto& [number, ranks] : hosts) {
    const int counterpart = ranks[static_cast<std::size_t>(found.local_rank)];
    if (counterpart == rank) found.across_rank = static_cast<int>(found.across.size());
    found.across.push_back(counterpart);
  }
  return found;
}

}  // namespace rueda
