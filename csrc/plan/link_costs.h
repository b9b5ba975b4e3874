// What messages between hosts cost, and which algorithm is therefore the quickest for each size.
#pragma once

#include <cstdint>

#include "plan/algorithm_table.h"

namespace rueda {

// A message of n bytes takes latency + n * per_byte nanoseconds. The defaults, used if nothing was
// measured, are for a 10 Gbit/s link.
struct LinkCosts {
  double latency = 30'000;
  double per_byte = 0.8;
  bool is_measured = false;
  // The most that is sent at a time. Transports send small messages immediately. For larger ones
  // they first agree with the receiver, a round trip that queues behind what is in transit.
  std::int64_t chunk = large_chunk;
  // ns for each further message that is sent, and one that is received, at the same time; and for
  // each byte copied in memory. The defaults, if nothing was measured, are those of TCP between
  // network namespaces of one machine.
  double per_message = 8'000;
  double per_copied_byte = 0.03;

  static constexpr std::int64_t small_chunk = 60 << 10;
  static constexpr std::int64_t large_chunk = 256 << 10;
};

// Whether to use links of one kind instead of those of another, which already exist. Large messages
// decide; if those take about the same time, `these` must not be clearly slower for small ones.
[[nodiscard]] bool is_quicker(const LinkCosts& these, const LinkCosts& those);

// The time in ns of an allreduce across this many hosts. What happens within the hosts is left out,
// since it is the same for all algorithms.
[[nodiscard]] double doubling_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double halving_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double ring_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double tree_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double cost_across(Algorithm algorithm, const LinkCosts& costs, int hosts,
                                 std::int64_t bytes);

// The chunk that minimizes tree_cost(): small chunks reach the root and the leaves sooner, large
// ones are fewer messages.
[[nodiscard]] std::int64_t tree_chunk(const LinkCosts& costs, int hosts, std::int64_t bytes);

// The most that should travel along the tree in which hosts agree anyway (RoundAgreement), instead
// of being exchanged by recursive doubling afterwards. In the tree, a host sends it to each of its
// children, one after the other, and saves doubling_cost().
[[nodiscard]] std::int64_t eager_limit(const LinkCosts& costs, int hosts);

// The most that ranks should have for each other, on average, for gathering to pay off: collecting
// what the `members` members of a host have for a rank of another before it is sent. That saves all
// messages but one, and costs a copy.
[[nodiscard]] std::int64_t gathering_limit(const LinkCosts& costs, int members);

// Recursive doubling below the size at which rings are quicker. The rings are hierarchical if hosts
// have several members (`shares`), and otherwise one ring of all. In between, recursive halving or
// two trees, if there are so many hosts that these are quicker than both.
[[nodiscard]] AlgorithmTable algorithms_across(const LinkCosts& costs, int hosts, bool shares);

// For an all-to-all of hosts with up to `members` members.
[[nodiscard]] AlgorithmTable alltoall_across(const LinkCosts& costs, int members);

}  // namespace rueda
