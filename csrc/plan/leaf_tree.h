// How the partial sums of all ranks become the root of the tree over the leaves: see
// include/rueda/leaves.h, whose functions are defined beside this one.
#pragma once

#include <cstddef>
#include <vector>

#include "rueda/leaves.h"

namespace rueda {

// The same on every rank: it follows from who computes which leaf, and the bits of the result do
// not depend on it.
struct LeafPlan {
  struct Source {
    int rank = 0;    // within the set
    int number = 0;  // of that rank's partial sums
    [[nodiscard]] bool operator==(const Source&) const = default;
  };
  int leaves = 0;
  std::vector<Source> sources;  // all partial sums, by their first leaf
  // After source i: how often the last two of what has been pushed so far are replaced by their
  // sum. Nothing but the root is left in the end.
  std::vector<int> merges;
  std::vector<int> partials;  // of each rank, how many

  [[nodiscard]] int partials_of(int rank) const { return partials[static_cast<std::size_t>(rank)]; }
  // Where each source is among the partial sums of all ranks, those of rank 0 first.
  [[nodiscard]] std::vector<std::size_t> places() const;
};

// `leaf_ranks`: for each leaf the rank, from 0 to ranks - 1, that computes it; at least one.
[[nodiscard]] LeafPlan plan_leaves(const std::vector<int>& leaf_ranks, int ranks);

}  // namespace rueda
