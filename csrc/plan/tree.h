// The tree in which the ranks of a process set negotiate: rank 0 is the root, and inner nodes merge
// the requests of their subtrees, so that no rank exchanges more than `fanout` + 1 messages per
// step and the depth is O(log ranks).
#pragma once

#include <algorithm>
#include <map>
#include <vector>

namespace rueda {

inline constexpr int negotiation_fanout = 4;

class Tree {
 public:
  Tree(int rank, int size, int fanout) : rank_(rank), size_(size), fanout_(std::max(1, fanout)) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_root() const { return rank_ == 0; }
  [[nodiscard]] int parent() const { return (rank_ - 1) / fanout_; }
  [[nodiscard]] std::vector<int> children() const { return children_of(rank_); }

  // The children and the parent.
  [[nodiscard]] std::vector<int> neighbours() const {
    std::vector<int> ranks = children();
    if (!is_root()) ranks.push_back(parent());
    return ranks;
  }

  // All ranks below `node` and `node` itself, sorted.
  [[nodiscard]] std::vector<int> subtree(int node) const {
    std::vector<int> ranks{node};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::vector<int> below = children_of(ranks[i]);
      ranks.insert(ranks.end(), below.begin(), below.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

 private:
  [[nodiscard]] std::vector<int> children_of(int node) const {
    std::vector<int> ranks;
    for (long long child = static_cast<long long>(node) * fanout_ + 1;
         child <= static_cast<long long>(node) * fanout_ + fanout_ && child < size_; ++child) {
      ranks.push_back(static_cast<int>(child));
    }
    return ranks;
  }

  int rank_;
  int size_;
  int fanout_;
};

// The subtrees of a node's children, computed once.
class Subtrees {
 public:
  explicit Subtrees(const Tree& tree) : children_(tree.children()) {
    for (const int child : children_) below_[child] = tree.subtree(child);
  }

  [[nodiscard]] const std::vector<int>& children() const { return children_; }
  // The ranks of a child's subtree, sorted.
  [[nodiscard]] const std::vector<int>& below(int child) const { return below_.at(child); }

 private:
  std::vector<int> children_;
  std::map<int, std::vector<int>> below_;
};

}  // namespace rueda
