// One step of a table in the order of the ring: one addition of each rank after the other, so that
// the sum has the bits of a ring allreduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace rueda {

class RingStep {
 public:
  // `owner`: the rank of the set that adds up; it has the last turn, as in the ring.
  RingStep(std::size_t ranks, std::size_t owner, std::int64_t count)
      : ranks_(ranks), owner_(owner), count_(count) {}

  // The rank of the set whose turn it is, unless all have had theirs.
  [[nodiscard]] std::size_t turn() const { return (owner_ + 1 + turn_) % ranks_; }
  [[nodiscard]] bool is_summed() const { return turn_ == ranks_; }
  [[nodiscard]] bool is_begun() const { return has_any_; }
  // Elements [from, to) of the rank whose turn it is.
  void add(const float* delta, std::int64_t from, std::int64_t to) {
    sum_.resize(static_cast<std::size_t>(count_));
    for (std::int64_t i = from; i < to; ++i) {
      float& sum = sum_[static_cast<std::size_t>(i)];
      sum = has_any_ ? sum + delta[i] : delta[i];
    }
  }
  // That rank's elements are complete.
  void pass() {
    has_any_ = true;
    ++turn_;
  }
  // Skips ranks that will send nothing more.
  void skip(const std::function<bool(std::size_t rank)>& is_over) {
    while (turn_ < ranks_ && is_over(turn())) ++turn_;
    if (turn_ == ranks_ && !has_any_) turn_ = 0;
  }
  [[nodiscard]] std::span<const float> sum() const { return sum_; }
  // Begins the next step.
  void restart() {
    turn_ = 0;
    has_any_ = false;
  }

 private:
  std::size_t ranks_;
  std::size_t owner_;
  std::int64_t count_;
  std::size_t turn_ = 0;
  bool has_any_ = false;
  std::vector<float> sum_;
};

}  // namespace rueda
