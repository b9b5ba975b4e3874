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
#include "plan/algorithm_table.h"
#include "transport/bootstrap.h"

namespace rueda {

// What an allreduce takes at three sizes; straight lines between them and beyond.
struct MeasuredCost {
  double small = 0;  // ns
  double middle = 0;
  double large = 0;
};

struct HostCosts {
  double exchange = 0;  // ns: every rank tells every other something; 0 where nothing was measured
  double large_bytes = 0;   // the size of `large`
  MeasuredCost flat;        // through copies
  MeasuredCost direct;      // reaching into any memory
  MeasuredCost registered;  // reaching into registered memory
  MeasuredCost staged;      // through slots chunk by chunk; 0 where it cannot be

  // ns that `bytes` take by one of them.
  [[nodiscard]] double at(const MeasuredCost& cost, std::size_t bytes) const;
};

// The policy with which predicted times are shortest.
[[nodiscard]] HostPolicy policy_of(const HostCosts& costs);
// What suits a single tensor of each size that is not registered.
[[nodiscard]] AlgorithmTable table_of(const HostCosts& costs);

// Collective over all ranks of `bootstrap`, which are those of `host`; takes a few milliseconds.
[[nodiscard]] Expected<HostCosts> measure_costs(Bootstrap& bootstrap,
                                                const std::shared_ptr<HostMemory>& host,
                                                Time deadline);

}  // namespace rueda
