// Small sorted lists of ranks, and membership in a list.
#pragma once

#include <algorithm>
#include <vector>

namespace rueda {

template <class Value>
bool contains(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Keeps `ranks` sorted and without duplicates.
inline void add_ranks(std::vector<int>& ranks, const std::vector<int>& more) {
  if (more.empty()) return;
  ranks.insert(ranks.end(), more.begin(), more.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
}

}  // namespace rueda
