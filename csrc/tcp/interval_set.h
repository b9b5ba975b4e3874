// A set of numbers that arrive mostly in order, stored as intervals. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace rueda {

class IntervalSet {
 public:
  // Adds [begin, end). Returns how many of these numbers are new.
  std::uint64_t add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return 0;
    std::uint64_t fresh = end - begin;
    std::uint64_t low = begin;
    std::uint64_t high = end;
    auto next = intervals_.upper_bound(begin);
    if (next != intervals_.begin() && std::prev(next)->second >= begin) --next;
    while (next != intervals_.end() && next->first <= end) {
      const auto [first, last] = *next;
      fresh -= std::max(std::min(last, end), begin) - std::max(first, begin);
      low = std::min(low, first);
      high = std::max(high, last);
      next = intervals_.erase(next);
    }
    intervals_.emplace_hint(next, low, high);
    return fresh;
  }

  [[nodiscard]] bool contains(std::uint64_t number) const {
    const auto next = intervals_.upper_bound(number);
    return next != intervals_.begin() && std::prev(next)->second > number;
  }
  // Number of intervals.
  [[nodiscard]] std::size_t intervals() const { return intervals_.size(); }

 private:
  std::map<std::uint64_t, std::uint64_t> intervals_;  // begin to end, with gaps in between
};

}  // namespace rueda
