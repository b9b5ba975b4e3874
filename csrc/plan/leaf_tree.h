// How the partial sums of all ranks become the root of the tree over the leaves: see
// include/rueda/leaves.h, whose functions leaf_tree.cpp defines, too.
#pragma once

#include <cstddef>
#include <vector>

#include "rueda/leaves.h"

namespace rueda {

// The same on every rank. It follows from who computes which leaf, but the bits of the result do
// not depend on that.
struct LeafPlan {
  struct Source {
    int rank = 0;    // within the set
    int number = 0;  // index among that rank's partial sums
    [[nodiscard]] bool operator==(const Source&) const = default;
  };
  int leaves = 0;
  std::vector<Source> sources;  // all partial sums, by their first leaf
  // After source i is pushed, the last two entries are replaced by their sum merges[i] times. Only
  // the root is left in the end.
  std::vector<int> merges;
  std::vector<int> partials;  // how many each rank has

  [[nodiscard]] int partials_of(int rank) const { return partials[static_cast<std::size_t>(rank)]; }
  // The position of each source among the partial sums of all ranks, rank 0's first.
  [[nodiscard]] std::vector<std::size_t> places() const;
};

// `leaf_ranks`: for each leaf, the rank (0 to ranks - 1) that computes it; at least one leaf.
[[nodiscard]] LeafPlan plan_leaves(const std::vector<int>& leaf_ranks, int ranks);

}  // namespace rueda
