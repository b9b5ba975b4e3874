#include "plan/link_costs.h"

#include <algorithm>
#include <bit>

#include "plan/doubling_plan.h"

namespace rueda {

namespace {

// Recursive doubling does not overlap what is combined with what is on the wire, and uses one rank
// of each host: not for more than this.
constexpr std::int64_t max_doubling = 256 << 10;
constexpr std::int64_t min_doubling = 1 << 10;
// What is gathered is not on the wire meanwhile: not for more than this, either.
constexpr std::int64_t max_gathered = 256 << 10;

}  // namespace

bool is_quicker(const LinkCosts& these, const LinkCosts& those) {
  constexpr double about = 1.15;  // trials are short
  constexpr double clearly = 2;
  const auto large = [](const LinkCosts& costs) {
    return costs.latency + costs.per_byte * (1 << 20);
  };
  if (large(these) * about < large(those)) return true;
  if (large(those) * about < large(these)) return false;
  return these.latency < clearly * those.latency;
}

double doubling_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  return doubling_hops(hosts) * (costs.latency + costs.per_byte * static_cast<double>(bytes));
}

double ring_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  const double hops = 2.0 * (hosts - 1);
  return hops * (costs.latency + costs.per_byte * static_cast<double>(bytes) / hosts);
}

std::int64_t eager_limit(const LinkCosts& costs, int hosts) {
  constexpr int fanout = 4;
  int levels = 0;
  for (int below = hosts - 1; below > 0; below = (below - 1) / fanout) ++levels;
  const int children = std::min(hosts - 1, fanout);
  const double per_byte = costs.per_byte * (levels * (1 + children) - doubling_hops(hosts));
  const double saved = costs.latency * doubling_hops(hosts);
  return per_byte > 0 ? static_cast<std::int64_t>(saved / per_byte) : max_doubling;
}

std::int64_t gathering_limit(const LinkCosts& costs, int members) {
  const double saved = costs.per_message * (members - 1) / members;
  if (saved >= costs.per_copied_byte * max_gathered) return max_gathered;
  return static_cast<std::int64_t>(saved / costs.per_copied_byte);
}

AlgorithmTable algorithms_across(const LinkCosts& costs, int hosts, bool shares) {
  std::int64_t limit = min_doubling;
  while (limit < max_doubling &&
         doubling_cost(costs, hosts, limit) <= ring_cost(costs, hosts, limit)) {
    limit *= 2;
  }
  return AlgorithmTable::of_limit(limit, Algorithm::doubling,
                                  shares ? Algorithm::hierarchical : Algorithm::ring);
}

AlgorithmTable alltoall_across(const LinkCosts& costs, int members) {
  const auto limit = static_cast<std::uint64_t>(gathering_limit(costs, members));
  return AlgorithmTable::of_limit(static_cast<std::int64_t>(std::bit_floor(limit)),
                                  Algorithm::gathered, Algorithm::pairwise);
}

}  // namespace rueda
