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

// With so many batches `running`, of which all have the same priority. `in_flight`: how many there
// should be.
[[nodiscard]] inline Load load_of(std::size_t running, std::size_t in_flight, bool spans_hosts) {
  // Between hosts the news that others are ready may wait in the queue of a link behind what is
  // under way, 50 ms and more at 1 Gbit/s: large tensors that follow one another keep the link from
  // being idle meanwhile, since so many of them are under way.
  constexpr std::size_t large_bytes = 1 << 20;
  constexpr std::size_t large_in_flight = 16;
  Load load{.is_busy = running >= in_flight};
  if (spans_hosts && running < large_in_flight) load.large = large_bytes;
  return load;
}

}  // namespace rueda
