// Two binary trees over the same ranks, as data: every rank is an inner node in one of them at
// most, so that each tree can carry half of the data at the full rate of the links.
//
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35, 2009. In the first tree the ranks lie in order, so that each second one is
// a leaf; the second tree is the first one mirrored, or, where the number of ranks is odd, shifted
// by one, so that leaves become inner nodes.
#pragma once

#include <vector>

namespace rueda {

// Where a rank is in a tree.
struct TreePlace {
  int parent = -1;            // none of the root
  std::vector<int> children;  // two at most, in the order in which what they hold is combined

  [[nodiscard]] bool is_root() const { return parent < 0; }
};

// `tree`: 0 or 1.
[[nodiscard]] TreePlace place_in_tree(int tree, int rank, int size);

// How many hops a leaf is away from the root, at most: floor(log2(size)).
[[nodiscard]] int tree_depth(int size);

}  // namespace rueda
