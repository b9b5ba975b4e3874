// Costs of operations on this host, measured once when the world is formed, and the exchange method
// for each size that follows from them. All ranks use the figures of rank 0.
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

// Duration of an allreduce at three sizes; linear between and beyond them.
struct MeasuredCost {
  double small = 0;  // ns
  double middle = 0;
  double large = 0;
};

struct HostCosts {
  double exchange = 0;      // ns for every rank to tell every other something; 0: not measured
  double large_bytes = 0;   // the size of `large`
  MeasuredCost flat;        // copies through slots
  MeasuredCost direct;      // accessing any memory
  MeasuredCost registered;  // accessing registered memory
  MeasuredCost staged;      // through slots, chunk by chunk; 0 if not possible

  // Predicted ns for `bytes` with one of these methods.
  [[nodiscard]] double at(const MeasuredCost& cost, std::size_t bytes) const;
};

// The policy with the shortest predicted times.
[[nodiscard]] HostPolicy policy_of(const HostCosts& costs);
// The best algorithm by size for a single unregistered tensor.
[[nodiscard]] AlgorithmTable table_of(const HostCosts& costs);

// Collective over all ranks of `bootstrap`, which are those of `host`. Takes a few milliseconds; if
// other programs keep the processors busy, about half a second, since it then measures less often.
[[nodiscard]] Expected<HostCosts> measure_costs(Bootstrap& bootstrap,
                                                const std::shared_ptr<HostMemory>& host,
                                                Time deadline);

}  // namespace rueda
