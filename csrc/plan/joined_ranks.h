// Which ranks of a node's subtree have joined. They submit nothing until all ranks of the process
// set have joined, and what others submit meanwhile is complete without them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "plan/rank_list.h"
#include "plan/tree.h"

namespace rueda {

class JoinedRanks {
 public:
  // Both must outlive this.
  JoinedRanks(const Tree& tree, const Subtrees& subtrees) : tree_(tree), subtrees_(subtrees) {}

  void join() {
    self_ = true;
    ranks_.push_back(tree_.rank());
  }
  // A child reports that ranks of its subtree have joined. Returns whether that is possible.
  [[nodiscard]] bool join(int child, const std::vector<int>& ranks);
  // All have joined: the next round begins.
  void begin_anew() {
    self_ = false;
    ranks_.clear();
    below_.clear();
  }

  // A child has sent numbers of the response cache that this rank did not know. Until the child has
  // said what they stood for, it may have submitted more than is known here.
  void await_numbers(int child, std::uint64_t count) { awaited_[child] += count; }
  [[nodiscard]] bool awaits_numbers(int child, std::uint64_t count) {
    return awaited_[child] >= count;
  }
  void settle_numbers(int child, std::uint64_t count) { awaited_[child] -= count; }

  [[nodiscard]] bool has_self() const { return self_; }
  [[nodiscard]] bool has_rank(int rank) const { return contains(ranks_, rank); }
  // Whether a child's whole subtree has joined, and nothing from it is still to come.
  [[nodiscard]] bool has_subtree(int child) const;
  [[nodiscard]] bool has_all() const {
    return ranks_.size() == static_cast<std::size_t>(tree_.size());
  }
  [[nodiscard]] bool awaits_no_numbers() const {
    return std::all_of(awaited_.begin(), awaited_.end(),
                       [](const auto& child) { return child.second == 0; });
  }
  // In order of joining.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }

 private:
  const Tree& tree_;
  const Subtrees& subtrees_;
  bool self_ = false;
  std::vector<int> ranks_;
  std::map<int, std::size_t> below_;  // how many ranks of each child's subtree have joined
  std::map<int, std::uint64_t> awaited_;
};

}  // namespace rueda
