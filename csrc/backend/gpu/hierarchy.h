// Who stands where when the ranks of a process set reduce within each host first, and then across.
#pragma once

#include <vector>

namespace rueda {

// As one rank of the set sees it. Ranks are those of the set, in its order.
struct Hierarchy {
  std::vector<int> local;  // the ranks of this one's host
  int local_rank = 0;      // its index there
  int slices = 1;          // how many ranks of each host carry a slice: as many as the smallest has
  std::vector<int> across;  // those with the same local rank, one of each host; empty where this
                            // one carries no slice
  int across_rank = 0;      // its index there

  [[nodiscard]] bool carries_slice() const { return local_rank < slices; }
};

// `members`: world ranks. `host_of`: of each world rank, which host it is on.
[[nodiscard]] Hierarchy hierarchy_of(const std::vector<int>& members, int rank,
                                     const std::vector<int>& host_of);

}  // namespace rueda
