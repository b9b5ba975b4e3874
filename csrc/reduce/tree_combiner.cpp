#include "reduce/tree_combiner.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rueda {

namespace {

Combination node_of(const Combination& combination) {
  const bool adds = combination.op == ReduceOp::average;
  return {.dtype = combination.dtype, .op = adds ? ReduceOp::sum : combination.op};
}

}  // namespace

TreeCombiner::TreeCombiner(const Combination& combination, std::vector<int> merges)
    : merges_(std::move(merges)),
      block_(static_cast<std::int64_t>(block_bytes / size_of(combination.dtype))),
      root_is_last_(combination.divisor == 1 && combination.postscale == 1.0),
      element_(size_of(combination.dtype)),
      node_(node_of(combination)),
      last_(combination) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  for (const int merged : merges_) {
    deepest = std::max(deepest, ++depth);
    depth -= static_cast<std::size_t>(merged);
  }
  scratch_.resize(deepest * block_bytes);
  stack_.reserve(deepest);
}

void TreeCombiner::operator()(std::span<std::byte* const> targets,
                              std::span<const std::byte* const> inputs, std::int64_t count,
                              Stores stores) {
  if (inputs.size() == 1) return last_(targets, inputs, count, stores);
  targets_ = targets;
  inputs_ = inputs;
  for (std::int64_t first = 0; first < count; first += block_) {
    const auto offset = static_cast<std::size_t>(first) * element_;
    combine_block(offset, std::min(block_, count - first), stores);
  }
}

void TreeCombiner::combine_block(std::size_t offset, std::int64_t count, Stores stores) {
  shifted_.clear();
  for (std::byte* const target : targets_) shifted_.push_back(target + offset);
  stack_.clear();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    stack_.push_back(inputs_[i] + offset);
    for (int left = merges_[i]; left > 0; --left) {
      const std::array<const std::byte*, 2> both{stack_[stack_.size() - 2], stack_.back()};
      stack_.pop_back();
      const bool is_root = stack_.size() == 1 && left == 1 && i + 1 == inputs_.size();
      if (is_root && root_is_last_) return node_(shifted_, both, count, stores);
      std::byte* const sum = scratch(stack_.size() - 1);
      node_(std::array{sum}, both, count, Stores::cached);
      stack_.back() = sum;
    }
  }
  last_(shifted_, std::array{stack_.front()}, count, stores);
}

}  // namespace rueda
