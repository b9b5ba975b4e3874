// A sum whose bits do not depend on how many ranks compute it.
//
// The global batch is L logical leaves, L fixed by the user. What the leaves yield is added up in
// one binary tree over them, whose shape follows from L alone: a node of more than one leaf is the
// sum of its left child, which has the largest power of two of leaves that is less than the node's,
// and its right child, which has the rest. With eight leaves:
//
//     ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
//
// Each rank computes some of the leaves and adds up what it can: the largest nodes of the tree that
// lie in its leaves as a whole are its partial sums. An allreduce with AllreduceOptions::leaf_ranks
// adds up the partial sums of all ranks along the tree. docs/reproducible.md tells what that gives.
#pragma once

#include <vector>

namespace rueda {

// So many leaves there may be.
inline constexpr int max_leaves = 65536;

// A node of the tree: the leaves from `first` on.
struct LeafNode {
  int first = 0;
  int count = 1;
  [[nodiscard]] bool operator==(const LeafNode&) const = default;
};

// Which rank of `ranks` (of a process set) computes each of `leaves`: a range each, as even as
// possible, earlier ranks get one more. With more ranks than leaves the last ones get none.
// Throws InvalidArgumentError for numbers below 1 and for more than max_leaves.
[[nodiscard]] std::vector<int> divide_leaves(int leaves, int ranks);

// Who computes which leaf once only `survivors` are left, ranks by their old numbers in ascending
// order, which are numbered anew from 0. A survivor keeps its leaves, so that only those of the
// lost are computed again; these go, in ascending order, each to the survivor that has fewest then,
// the first of several. Throws InvalidArgumentError where nobody is left.
[[nodiscard]] std::vector<int> reassign_leaves(const std::vector<int>& leaf_ranks,
                                               const std::vector<int>& survivors);

// The leaves of `rank`, in ascending order.
[[nodiscard]] std::vector<int> leaves_of(const std::vector<int>& leaf_ranks, int rank);

// How a rank adds up its leaves. It goes through them in ascending order with a stack: it pushes
// what leaf i of them yields, then pops two entries and pushes their sum, merges[i] times. What
// lies on the stack in the end are its partial sums, in the order in which it hands them in.
struct LeafSchedule {
  std::vector<int> leaves;
  std::vector<int> merges;         // after each leaf
  std::vector<LeafNode> partials;  // the largest nodes that consist of these leaves
};
// Of ascending numbers from 0 to total - 1.
[[nodiscard]] LeafSchedule schedule_of(int total, std::vector<int> leaves);

}  // namespace rueda
