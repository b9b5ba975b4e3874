#include "plan/link_costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "plan/double_tree.h"
#include "plan/recursive_plan.h"

namespace rueda {

namespace {

// Recursive doubling does not overlap combining with transfers, and uses only one rank per host:
// not for more than this.
constexpr std::int64_t max_doubling = 256 << 10;
constexpr std::int64_t min_doubling = 1 << 10;
// Trees are for latency: each host has one rank in them, whatever its other ranks could carry.
constexpr std::int64_t max_tree = 1 << 20;
// Smaller data may travel along with the hosts' agreement instead of by doubling: eager_limit().
constexpr std::int64_t min_tree = 8 << 10;
constexpr std::int64_t min_tree_chunk = 1 << 10;
// How much quicker trees and halving have to be, since trials are short.
constexpr double clearly = 1.1;
// Gathering does not overlap with transfers: also not for more than this.
constexpr std::int64_t max_gathered = 256 << 10;

}  // namespace

bool is_quicker(const LinkCosts& these, const LinkCosts& those) {
  constexpr double about = 1.15;  // trials are short
  constexpr double much = 2;
  const auto large = [](const LinkCosts& costs) {
    return costs.latency + costs.per_byte * (1 << 20);
  };
  if (large(these) * about < large(those)) return true;
  if (large(those) * about < large(these)) return false;
  return these.latency < much * those.latency;
}

double doubling_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  return doubling_hops(hosts) * (costs.latency + costs.per_byte * static_cast<double>(bytes));
}

double halving_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(hosts)));
  const double sent = 2.0 * (power - 1) / power + (power == hosts ? 0 : 2);
  return halving_hops(hosts) * costs.latency + sent * costs.per_byte * static_cast<double>(bytes);
}

double ring_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  const double hops = 2.0 * (hosts - 1);
  return hops * (costs.latency + costs.per_byte * static_cast<double>(bytes) / hosts);
}

std::int64_t tree_chunk(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  const double longer = tree_depth(hosts) * costs.per_byte;
  const double fewer = costs.per_message * static_cast<double>(bytes);
  const auto most = static_cast<double>(costs.chunk);
  if (longer * most * most <= fewer) return costs.chunk;
  return std::max(min_tree_chunk, static_cast<std::int64_t>(std::sqrt(fewer / longer)));
}

// The first chunk goes up to the root and down again; the others follow it. Each host is an inner
// node in one tree: of each two chunks, one in each tree, it sends one to its parent and two to its
// children, and another as a leaf.
double tree_cost(const LinkCosts& costs, int hosts, std::int64_t bytes) {
  const auto length = static_cast<double>(bytes);
  const double chunk = std::min(length, static_cast<double>(tree_chunk(costs, hosts, bytes)));
  const double first = 2 * tree_depth(hosts) * (costs.latency + costs.per_byte * chunk);
  return first + 2 * length * (costs.per_byte + costs.per_message / std::max(chunk, 1.0));
}

double cost_across(Algorithm algorithm, const LinkCosts& costs, int hosts, std::int64_t bytes) {
  switch (algorithm) {
    case Algorithm::doubling: return doubling_cost(costs, hosts, bytes);
    case Algorithm::halving: return halving_cost(costs, hosts, bytes);
    case Algorithm::tree: return tree_cost(costs, hosts, bytes);
    default: return ring_cost(costs, hosts, bytes);
  }
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
  const Algorithm large = shares ? Algorithm::hierarchical : Algorithm::ring;
  std::vector<AlgorithmTable::Row> rows{{0, Algorithm::doubling}};
  bool doubles = true;  // so far; after another algorithm has been quicker, it stays so
  for (std::int64_t size = min_doubling; size <= max_tree; size *= 2) {
    Algorithm best = large;
    double least = ring_cost(costs, hosts, size);
    const auto consider = [&](Algorithm algorithm, double cost) {
      if (cost < least) {
        best = algorithm;
        least = cost;
      }
    };
    const double doubling = doubling_cost(costs, hosts, size);
    doubles = doubles && size < max_doubling && doubling <= least;
    if (doubles) {
      best = Algorithm::doubling;
      least = doubling;
    }
    if (size >= min_tree && size < max_tree) {
      consider(Algorithm::tree, tree_cost(costs, hosts, size) * clearly);
    }
    // Its first messages are halves. They are not cut, so they should be no longer than a chunk.
    if (size <= costs.chunk) {
      consider(Algorithm::halving, halving_cost(costs, hosts, size) * clearly);
    }
    doubles = best == Algorithm::doubling;
    rows.push_back({size, best});
  }
  return AlgorithmTable::of_rows(std::move(rows));
}

AlgorithmTable alltoall_across(const LinkCosts& costs, int members) {
  const auto limit = static_cast<std::uint64_t>(gathering_limit(costs, members));
  return AlgorithmTable::of_limit(static_cast<std::int64_t>(std::bit_floor(limit)),
                                  Algorithm::gathered, Algorithm::pairwise);
}

}  // namespace rueda
