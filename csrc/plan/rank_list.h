// Small sorted lists of ranks, and membership and places in a list.
#pragma once

#include <algorithm>
#include <vector>

namespace rueda {

template <class Value>
bool contains(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// The rank of a process in a world with these processes (sorted), which is its place; -1 if it is
// not there.
inline int rank_among(const std::vector<int>& members, int process) {
  const auto found = std::lower_bound(members.begin(), members.end(), process);
  if (found == members.end() || *found != process) return -1;
  return static_cast<int>(found - members.begin());
}

// Keeps `ranks` sorted and without duplicates.
inline void add_ranks(std::vector<int>& ranks, const std::vector<int>& more) {
  if (more.empty()) return;
  ranks.insert(ranks.end(), more.begin(), more.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
}

}  // namespace rueda
