// What things cost on this host, measured once when the world is formed, and which sizes are
// therefore exchanged in which way. All ranks go by the figures of rank 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "onehost/host_collective.h"
#include "onehost/host_memory.h"
#include "transport/bootstrap.h"

namespace rueda {

// What an all-reduction takes: a straight line through two sizes.
struct LinearCost {
  double base = 0;      // ns
  double per_byte = 0;  // ns

  [[nodiscard]] double at(std::size_t bytes) const {
    return base + per_byte * static_cast<double>(bytes);
  }
};

struct HostCosts {
  double exchange = 0;  // ns: every rank tells every other something; 0 where nothing was measured
  LinearCost flat;      // through copies
  LinearCost direct;    // reaching into any memory
  LinearCost registered;  // reaching into registered memory
};

// The policy with which predicted times are shortest.
[[nodiscard]] HostPolicy policy_of(const HostCosts& costs);

// Collective over all ranks of `bootstrap`, which are those of `host`; takes a few milliseconds.
[[nodiscard]] Expected<HostCosts> measure_costs(Bootstrap& bootstrap,
                                                const std::shared_ptr<HostMemory>& host,
                                                Time deadline);

}  // namespace rueda
