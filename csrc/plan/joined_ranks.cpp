#include "plan/joined_ranks.h"

namespace rueda {

bool JoinedRanks::join(int child, const std::vector<int>& ranks) {
  const std::vector<int>& below = subtrees_.below(child);
  for (const int rank : ranks) {
    if (!std::binary_search(below.begin(), below.end(), rank)) return false;
  }
  if (ranks.empty()) return true;
  if (below_[child] + ranks.size() > below.size()) return false;
  below_[child] += ranks.size();
  ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  return true;
}

bool JoinedRanks::has_subtree(int child) const {
  const auto joined = below_.find(child);
  if (joined == below_.end() || joined->second < subtrees_.below(child).size()) return false;
  const auto awaited = awaited_.find(child);
  return awaited == awaited_.end() || awaited->second == 0;
}

}  // namespace rueda
