// Recursive doubling as data, the costs of links, and the table of algorithms that follows.
#include "plan/doubling_plan.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "plan/link_costs.h"

namespace rueda::test::doubling_plan_test {

namespace {

// Executes all ranks' exchanges on texts that say what was combined with what.
class Simulation {
 public:
  explicit Simulation(int size) {
    for (int rank = 0; rank < size; ++rank) {
      exchanges_.push_back(doubling_exchanges(rank, size));
      held_.push_back(std::to_string(rank));
    }
    next_.resize(held_.size());
  }

  // Until nothing more can be done; returns how often all that could be done was done at once.
  int run() {
    int rounds = 0;
    while (run_round()) ++rounds;
    return rounds;
  }
  [[nodiscard]] const std::string& held(std::size_t rank) const { return held_[rank]; }
  [[nodiscard]] bool is_over() const {
    for (std::size_t rank = 0; rank < held_.size(); ++rank) {
      if (next_[rank] < exchanges_[rank].size()) return false;
    }
    return true;
  }
  [[nodiscard]] int messages() const { return messages_; }

 private:
  [[nodiscard]] const Exchange* current(std::size_t rank) const {
    return next_[rank] < exchanges_[rank].size() ? &exchanges_[rank][next_[rank]] : nullptr;
  }

  bool run_round() {
    const std::vector<std::string> before = held_;
    std::vector<std::size_t> moved;
    for (std::size_t rank = 0; rank < held_.size(); ++rank) {
      const Exchange* own = current(rank);
      if (own == nullptr) continue;
      const auto peer = static_cast<std::size_t>(own->peer);
      const Exchange* other = current(peer);
      if (other == nullptr || other->peer != static_cast<int>(rank)) continue;
      REQUIRE(own->sends == other->receives);
      REQUIRE(own->receives == other->sends);
      moved.push_back(rank);
      messages_ += own->sends ? 1 : 0;
      if (!own->receives) continue;
      const bool is_first = peer < rank;
      const std::string& first = before[is_first ? peer : rank];
      const std::string& second = before[is_first ? rank : peer];
      held_[rank] = own->combines ? "(" + first + "+" + second + ")" : before[peer];
    }
    for (const std::size_t rank : moved) ++next_[rank];
    return !moved.empty();
  }

  std::vector<std::vector<Exchange>> exchanges_;
  std::vector<std::string> held_;
  std::vector<std::size_t> next_;
  int messages_ = 0;
};

}  // namespace

TEST_CASE("all ranks end with the same combination of all, in log2 hops") {
  for (int size = 1; size <= 40; ++size) {
    CAPTURE(size);
    Simulation simulation(size);
    REQUIRE(simulation.run() == doubling_hops(size));
    REQUIRE(simulation.is_over());
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(simulation.held(static_cast<std::size_t>(rank)) == simulation.held(0));
      int found = 0;
      std::string number;
      for (const char letter : simulation.held(0) + "+") {
        if (letter >= '0' && letter <= '9') {
          number += letter;
          continue;
        }
        found += number == std::to_string(rank) ? 1 : 0;
        number.clear();
      }
      REQUIRE(found == 1);
    }
  }
}

TEST_CASE("so many messages and hops") {
  const auto messages = [](int size) {
    Simulation simulation(size);
    simulation.run();
    return simulation.messages();
  };
  CHECK(messages(2) == 2);
  CHECK(messages(4) == 8);
  CHECK(messages(6) == 8 + 4);
  CHECK(messages(8) == 24);
  CHECK(doubling_hops(2) == 1);
  CHECK(doubling_hops(4) == 2);
  CHECK(doubling_hops(5) == 4);
  CHECK(doubling_hops(64) == 6);
}

TEST_CASE("the table across hosts follows from what links cost") {
  const LinkCosts gigabit{50'000, 8, true};
  const LinkCosts fast{5'000, 0.1, true};
  CHECK(algorithms_across(gigabit, 2, true).to_string() == "doubling:0-256K;hierarchical:256K-");
  CHECK(algorithms_across(gigabit, 4, true).to_string() == "doubling:0-64K;hierarchical:64K-");
  CHECK(algorithms_across(gigabit, 4, false).to_string() == "doubling:0-64K;ring:64K-");
  CHECK(algorithms_across(fast, 4, true).to_string() == "doubling:0-256K;hierarchical:256K-");
  // Four hops among three hosts, as around the ring.
  CHECK(algorithms_across(gigabit, 3, true).choose(64 << 10) == Algorithm::hierarchical);
  CHECK(doubling_cost(gigabit, 4, 1000) == 2 * (50'000 + 8'000));
  CHECK(ring_cost(gigabit, 4, 1000) == 6 * (50'000 + 2'000));
  // Up and down once: with two hosts it saves a turn and takes its length twice, not once.
  CHECK(eager_limit(gigabit, 2) == 50'000 / 8);
  CHECK(eager_limit(gigabit, 4) == 2 * 50'000 / (2 * 8));
  CHECK(eager_limit(gigabit, 21) == 6 * 50'000 / (8 * (2 * 5 - 6)));
}

TEST_CASE("what hosts have for each other is gathered where messages cost more than copies") {
  LinkCosts costs;
  costs.per_message = 4000;
  costs.per_copied_byte = 0.1;
  CHECK(gathering_limit(costs, 1) == 0);  // there is nothing to gather
  CHECK(gathering_limit(costs, 2) == 20'000);
  CHECK(gathering_limit(costs, 8) == 35'000);
  CHECK(alltoall_across(costs, 1).to_string() == "pairwise:0-");
  CHECK(alltoall_across(costs, 2).to_string() == "gathered:0-16K;pairwise:16K-");
  CHECK(alltoall_across(costs, 8).to_string() == "gathered:0-32K;pairwise:32K-");
  costs.per_copied_byte = 0;
  CHECK(alltoall_across(costs, 2).to_string() == "gathered:0-256K;pairwise:256K-");
  costs.per_message = 0;
  CHECK(gathering_limit(costs, 2) == 256 << 10);
}

TEST_CASE("one option overrides all tables, each by what it is for") {
  const AlgorithmTable host = AlgorithmTable::of_limit(8 << 10);
  const AlgorithmTable across =
      AlgorithmTable::of_limit(8 << 10, Algorithm::doubling, Algorithm::hierarchical);
  const auto within = [&](const char* text) {
    return AlgorithmTable::parse(text, host).value().to_string();
  };
  const auto between = [&](const char* text) {
    return AlgorithmTable::parse(text, across, Extent::several_hosts).value().to_string();
  };
  CHECK(within("hierarchical") == host.to_string());
  CHECK(between("flat") == across.to_string());
  CHECK(between("ring") == "ring:0-");
  CHECK(within("ring") == "ring:0-");
  CHECK(between("hierarchical:1K-") == "doubling:0-1K;hierarchical:1K-");
  CHECK(between("doubling:0-1M;direct:4K-") == "doubling:0-1M;hierarchical:1M-");
  const AlgorithmTable all_to_all =
      AlgorithmTable::of_limit(16 << 10, Algorithm::gathered, Algorithm::pairwise);
  const auto exchanges = [&](const char* text) {
    return AlgorithmTable::parse(text, all_to_all, Extent::alltoall_across).value().to_string();
  };
  CHECK(exchanges("ring") == all_to_all.to_string());
  CHECK(exchanges("doubling;pairwise") == "pairwise:0-");
  CHECK(exchanges("gathered:0-1M") == "gathered:0-1M;pairwise:1M-");
  CHECK(between("gathered") == across.to_string());
  CHECK_FALSE(AlgorithmTable::parse("star", across, Extent::several_hosts).ok());
}

}  // namespace rueda::test::doubling_plan_test
