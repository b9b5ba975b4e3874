// How much is under way on a rank, and what begins all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace rueda {

// Of what could begin.
struct Urgency {
  std::int32_t priority = 0;
  std::size_t bytes = 0;
};

struct Load {
  // Enough is under way that will end without anything else beginning: what comes meanwhile had
  // better wait and be fused.
  bool is_busy = false;
  // The greatest priority of what is under way. What has a greater one is to overtake it.
  std::int32_t most_urgent = std::numeric_limits<std::int32_t>::max();
  // What has so many bytes gains nothing by being fused, and keeps a link from being idle.
  std::size_t large = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] bool holds_back(Urgency urgency) const {
    return is_busy && urgency.priority <= most_urgent && urgency.bytes < large;
  }
};

}  // namespace rueda
