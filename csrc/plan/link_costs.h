// What messages between hosts cost, and which algorithm is therefore the quickest for which size.
#pragma once

#include <cstdint>

#include "plan/algorithm_table.h"

namespace rueda {

// A message of n bytes takes latency + n * per_byte nanoseconds. Where nothing was measured, as of
// a link of 10 Gbit/s.
struct LinkCosts {
  double latency = 30'000;
  double per_byte = 0.8;
  bool is_measured = false;
  // What is sent at a time, at most. Transports hand over small messages at once, and agree with
  // the receiver first on larger ones, which takes a turn that waits behind what is on its way.
  std::int64_t chunk = large_chunk;
  // ns for each further message that is sent, and one that is received, at the same time; and for
  // each byte that is copied in memory. Where nothing was measured, as of TCP between network
  // namespaces of one machine.
  double per_message = 8'000;
  double per_copied_byte = 0.03;

  static constexpr std::int64_t small_chunk = 60 << 10;
  static constexpr std::int64_t large_chunk = 256 << 10;
};

// Whether links of one kind should be taken rather than those of another, which are there already.
// Large messages decide; where these take about as long, what takes clearly longer for small ones
// loses.
[[nodiscard]] bool is_quicker(const LinkCosts& these, const LinkCosts& those);

// ns that an allreduce across so many hosts takes; what happens within them is left out, since it
// is the same in all.
[[nodiscard]] double doubling_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double ring_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double tree_cost(const LinkCosts& costs, int hosts, std::int64_t bytes);
[[nodiscard]] double cost_across(Algorithm algorithm, const LinkCosts& costs, int hosts,
                                 std::int64_t bytes);

// The chunk with which tree_cost() is least: small ones reach the root and the leaves sooner, large
// ones are fewer messages.
[[nodiscard]] std::int64_t tree_chunk(const LinkCosts& costs, int hosts, std::int64_t bytes);

// The most that should travel up and down the tree in which hosts agree anyway (RoundAgreement)
// rather than be exchanged by recursive doubling afterwards: there a host sends it to each of its
// children, one after the other, and saves doubling_cost().
[[nodiscard]] std::int64_t eager_limit(const LinkCosts& costs, int hosts);

// The most that ranks should have for each other, on average, if what the members of a host, so
// many, have for one of another is to be gathered before it is sent: that saves all messages but
// one, and costs a copy.
[[nodiscard]] std::int64_t gathering_limit(const LinkCosts& costs, int members);

// Recursive doubling below the size at which rings are quicker, which rings then are within the
// hierarchy where hosts have several members (`shares`), and one ring of all where each has one;
// and in between two trees, where there are so many hosts that these are quicker than both.
[[nodiscard]] AlgorithmTable algorithms_across(const LinkCosts& costs, int hosts, bool shares);

// Of an all-to-all of hosts with up to so many members.
[[nodiscard]] AlgorithmTable alltoall_across(const LinkCosts& costs, int members);

}  // namespace rueda
