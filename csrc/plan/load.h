// How much is in progress on a rank, and what begins nevertheless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace rueda {

// Of work that could begin.
struct Urgency {
  std::int32_t priority = 0;
  std::size_t bytes = 0;
};

struct Load {
  // Enough is in progress that will end on its own: what comes meanwhile had better wait and be
  // fused.
  bool is_busy = false;
  // The highest priority in progress. Work with a higher one is to overtake it.
  std::int32_t most_urgent = std::numeric_limits<std::int32_t>::max();
  // From this size in bytes, work gains nothing by being fused, and keeps a link busy.
  std::size_t large = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] bool holds_back(Urgency urgency) const {
    return is_busy && urgency.priority <= most_urgent && urgency.bytes < large;
  }
};

// The load with `running` batches in progress, all of the same priority. `in_flight`: how many
// there should be.
[[nodiscard]] inline Load load_of(std::size_t running, std::size_t in_flight, bool spans_hosts) {
  // Between hosts, the news that others are ready may wait in the queue of a link behind what is
  // in progress, 50 ms and more at 1 Gbit/s. Large tensors that follow one another keep the link
  // busy meanwhile, since this many of them are in progress.
  constexpr std::size_t large_bytes = 1 << 20;
  constexpr std::size_t large_in_flight = 16;
  Load load{.is_busy = running >= in_flight};
  if (spans_hosts && running < large_in_flight) load.large = large_bytes;
  return load;
}

}  // namespace rueda
