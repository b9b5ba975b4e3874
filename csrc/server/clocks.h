// How many steps each rank of a table has completed; limits how far ranks drift apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace rueda {

class Clocks {
 public:
  static constexpr std::int64_t finished = std::numeric_limits<std::int64_t>::max();

  // `ranks` of the world, all at 0.
  explicit Clocks(const std::vector<int>& ranks) {
    for (const int rank : ranks) clocks_.emplace(rank, 0);
  }

  void tick(int rank) {
    std::int64_t& clock = clocks_.at(rank);
    if (clock < finished) ++clock;
  }
  // The others stop waiting for this rank.
  void finish(int rank) { clocks_.at(rank) = finished; }
  // Sets the clock of a rank.
  void restart(int rank, std::int64_t clock) { clocks_.at(rank) = clock; }

  [[nodiscard]] std::int64_t of(int rank) const { return clocks_.at(rank); }
  // The clock of the rank that is furthest behind; `finished` if all have finished.
  [[nodiscard]] std::int64_t least() const {
    std::int64_t found = finished;
    for (const auto& [rank, clock] : clocks_) found = std::min(found, clock);
    return found;
  }
  [[nodiscard]] std::vector<int> behind(std::int64_t clock) const {
    std::vector<int> ranks;
    for (const auto& [rank, at] : clocks_) {
      if (at < clock) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  std::map<int, std::int64_t> clocks_;
};

}  // namespace rueda
