// Two binary trees over the same ranks, as data. Every rank is an inner node in at most one of
// them, so that each tree can carry half of the data at the full rate of the links.
//
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35, 2009. In the first tree the ranks are in order, so that every second one
// is a leaf. The second tree is the first one mirrored, or shifted by one if the number of ranks is
// odd, so that leaves become inner nodes.
#pragma once

#include <vector>

namespace rueda {

// A rank's place in a tree.
struct TreePlace {
  int parent = -1;            // -1 for the root
  std::vector<int> children;  // at most two, in the order in which their data is combined

  [[nodiscard]] bool is_root() const { return parent < 0; }
};

// `tree`: 0 or 1.
[[nodiscard]] TreePlace place_in_tree(int tree, int rank, int size);

// The greatest distance of a leaf from the root, in hops: floor(log2(size)).
[[nodiscard]] int tree_depth(int size);

}  // namespace rueda
