// Steps of training on all ranks of a world, in one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "links.h"
#include "settings.h"

namespace rueda::simulate {

struct StepResult {
  double seconds = 0;  // from the beginning on all ranks until the last one has all results
  std::size_t batches = 0;
  std::size_t lists = 0;         // of responses that were negotiated
  std::size_t rounds = 0;        // that went without negotiation
  std::vector<Traffic> traffic;  // by rank
  double root_busy = 0;          // seconds that its control messages take rank 0
  std::int64_t link_bytes = 0;   // by the busiest host to others
};

struct Result {
  std::vector<StepResult> steps;
  std::int64_t buffer_bytes = 0;  // of a rank at most: fusion buffers and staging
  // Of a rank on average, as this process has allocated it; 0 where that cannot be found out.
  std::int64_t control_bytes = 0;
  std::uint64_t events = 0;
};

[[nodiscard]] Result simulate(const Settings& settings);

}  // namespace rueda::simulate
