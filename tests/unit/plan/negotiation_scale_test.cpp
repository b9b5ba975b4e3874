// Ten thousand ranks, a thousand under a sanitizer: the messages that each rank sends and receives,
// and the messages per step, grow at most logarithmically with the number of ranks.
#include <cmath>
#include <string>
#include <vector>

#include "core/strings.h"
#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_scale_test {
namespace {

constexpr int size = effort(10'000, 1'000);
// Ranks that behave differently from the others.
constexpr int odd_rank = size / 10 * 7;
constexpr int late_rank = size / 8;
constexpr int fanout = 4;

// Submits everything on all ranks, runs rounds of one message each and counts the rounds.
int step(NegotiationSimulator& simulator, const std::vector<Request>& requests) {
  simulator.reset_counts();
  for (int rank = 0; rank < size; ++rank) {
    for (const Request& request : requests) REQUIRE(simulator.submit(rank, request).ok());
  }
  int rounds = 0;
  while (simulator.round()) ++rounds;
  simulator.require_agreement();
  return rounds;
}

void require_constant_work(NegotiationSimulator& simulator) {
  for (int rank = 0; rank < size; ++rank) {
    REQUIRE(simulator.rank(rank).sent <= fanout + 1);
    REQUIRE(simulator.rank(rank).received <= fanout + 1);
  }
}

TEST_CASE("any number of ranks agree within twice the depth of the tree and one message per edge") {
  const int depth = static_cast<int>(std::ceil(std::log(3.0 * size + 1) / std::log(fanout)));
  NegotiatorOptions options;
  options.fanout = fanout;
  options.stall_warning = seconds(60);
  NegotiationSimulator simulator(size, options, 1);
  Request broadcast = allreduce_of("weights");
  broadcast.collective = Collective::broadcast;
  broadcast.root = odd_rank;
  std::vector<Request> requests = group_of("g", 2);
  requests.push_back(broadcast);
  requests.push_back(allreduce_of("gradient", {1000}));

  const int uncached = step(simulator, requests);
  require_constant_work(simulator);
  REQUIRE(uncached <= 2 * depth + 2);
  REQUIRE(simulator.largest_message() < 1000);

  const int cached = step(simulator, requests);
  require_constant_work(simulator);
  REQUIRE(cached == uncached);
  REQUIRE(simulator.largest_message() <= 20);
  REQUIRE(simulator.unknown_ids_messages() == 0);
  REQUIRE(simulator.rank(size - 1).answers.at("gradient").size() == 2);
}

TEST_CASE(
    "any number of ranks join, a mismatch among them is found, and a stall names the one that is "
    "late") {
  NegotiatorOptions options;
  options.fanout = fanout;
  options.stall_warning = seconds(60);
  NegotiationSimulator simulator(size, options, 1);
  for (int rank = 0; rank < size; ++rank) {
    REQUIRE(simulator.submit(rank, allreduce_of("odd", {rank == odd_rank ? 5 : 4})).ok());
    if (rank != late_rank) REQUIRE(simulator.submit(rank, allreduce_of("late")).ok());
  }
  simulator.settle();
  const Status odd = simulator.rank(9).answers.at("odd").front().status;
  const std::string differs = str("[4] on ranks 0-", odd_rank - 1, " and ", odd_rank + 1, "-",
                                  size - 1, ", [5] on rank ", odd_rank);
  REQUIRE(odd.to_string().find(differs) != std::string::npos);
  for (int i = 0; i < 3 * 60; ++i) {
    simulator.advance(0.5);
    simulator.settle();
  }
  const std::string missing = str("missing on rank ", late_rank);
  REQUIRE(simulator.rank(9).warnings.at(0).status.to_string().find(missing) != std::string::npos);
  simulator.join(late_rank);
  simulator.settle();
  REQUIRE(simulator.rank(9).answers.at("late").front().absent == std::vector{late_rank});
  for (int rank = 0; rank < size; ++rank) {
    if (rank != late_rank) simulator.join(rank);
  }
  simulator.settle();
  simulator.require_agreement();
  REQUIRE(simulator.rank(77).last_joined.size() == 1);
}

}  // namespace
}  // namespace rueda::test::negotiation_scale_test
