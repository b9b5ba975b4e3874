// A sum whose bits do not depend on how many ranks compute it.
//
// The global batch is L logical leaves; the user fixes L. The results of the leaves are added up in
// a binary tree whose shape depends on L alone. A node of more than one leaf is the sum of its left
// child, which has the largest power of two of leaves that is less than the node's own count, and
// its right child, which has the rest. With eight leaves:
//
//     ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
//
// Each rank computes some of the leaves and adds up what it can: its partial sums are the largest
// nodes of the tree that lie entirely within its leaves. An allreduce with
// AllreduceOptions::leaf_ranks adds up the partial sums of all ranks along the tree.
// docs/reproducible.md explains what this guarantees.
#pragma once

#include <vector>

namespace rueda {

// The largest number of leaves.
inline constexpr int max_leaves = 65536;

// A node of the tree: `count` leaves, starting at `first`.
struct LeafNode {
  int first = 0;
  int count = 1;
  [[nodiscard]] bool operator==(const LeafNode&) const = default;
};

// Divides `leaves` over `ranks`: for each leaf, the rank of a process set that computes it. Ranks
// get contiguous ranges, as even as possible; earlier ranks get one more. With more ranks than
// leaves, the last ranks get none. Throws InvalidArgumentError for numbers below 1, and for more
// than max_leaves.
[[nodiscard]] std::vector<int> divide_leaves(int leaves, int ranks);
// Reassigns the leaves of lost ranks: for each leaf, the rank that computes it once only
// `survivors` (old rank numbers, ascending) are left, renumbered from 0. A survivor keeps its
// leaves, so that only those of lost ranks are computed again. These go, in ascending order, to the
// survivor that has the fewest at that point; among equals, to the first. Throws
// InvalidArgumentError if nobody is left.
[[nodiscard]] std::vector<int> reassign_leaves(const std::vector<int>& leaf_ranks,
                                               const std::vector<int>& survivors);

// The leaves of `rank`, in ascending order.
[[nodiscard]] std::vector<int> leaves_of(const std::vector<int>& leaf_ranks, int rank);

// How a rank adds up its leaves. It goes through them in ascending order with a stack: it pushes
// the result of its i-th leaf, then merges[i] times pops two entries and pushes their sum. What is
// left on the stack are its partial sums, in the order in which it passes them to the allreduce.
struct LeafSchedule {
  std::vector<int> leaves;
  std::vector<int> merges;         // after each leaf
  std::vector<LeafNode> partials;  // the largest nodes that consist of these leaves
};
// The schedule for a rank's `leaves`, ascending numbers from 0 to total - 1.
[[nodiscard]] LeafSchedule schedule_of(int total, std::vector<int> leaves);
// The schedule for a rank that continues an interrupted step and still has the sums of some nodes.
// `parts`: these nodes and the leaves that it has yet to compute, in ascending order. merges[i] and
// the stack are as above, with parts in place of leaves. Throws InvalidArgumentError if a part is
// not a node of the tree, or overlaps the part before it.
[[nodiscard]] LeafSchedule schedule_of_parts(int total, const std::vector<LeafNode>& parts);

}  // namespace rueda
