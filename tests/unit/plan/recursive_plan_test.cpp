// Recursive doubling and halving as data, link costs, and the table of algorithms derived from
// them.
#include "plan/recursive_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "plan/link_costs.h"

namespace rueda::test::recursive_plan_test {

namespace {

using Elements = std::vector<std::string>;  // per element, what was combined into it on one rank

using Planner = RecursivePlan (*)(int rank, int size, std::int64_t count);

// Executes all ranks' exchanges on strings that record what was combined with what.
class Simulation {
 public:
  Simulation(Planner planner, int size, std::int64_t count) {
    for (int rank = 0; rank < size; ++rank) {
      plans_.push_back(planner(rank, size, count));
      held_.emplace_back(static_cast<std::size_t>(count), "," + std::to_string(rank) + ",");
    }
    next_.resize(held_.size());
    bytes_.resize(held_.size());
  }

  // Runs until no exchange is possible; returns the number of rounds of simultaneous exchanges.
  int run() {
    int rounds = 0;
    while (run_round()) ++rounds;
    return rounds;
  }
  [[nodiscard]] const Elements& held(int rank) const { return held_[index(rank)]; }
  [[nodiscard]] bool is_over() const {
    for (std::size_t rank = 0; rank < held_.size(); ++rank) {
      if (next_[rank] < plans_[rank].exchanges.size()) return false;
    }
    return true;
  }
  [[nodiscard]] int messages() const { return messages_; }
  // By all ranks together.
  [[nodiscard]] std::int64_t divided() const { return divided_; }
  [[nodiscard]] std::int64_t sent_by(int rank) const { return bytes_[index(rank)]; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] const Exchange* current(std::size_t rank) const {
    const auto& exchanges = plans_[rank].exchanges;
    return next_[rank] < exchanges.size() ? &exchanges[next_[rank]] : nullptr;
  }

  bool run_round() {
    const std::vector<Elements> before = held_;
    std::vector<std::size_t> moved;
    for (std::size_t rank = 0; rank < held_.size(); ++rank) {
      const Exchange* own = current(rank);
      if (own == nullptr) continue;
      const auto peer = static_cast<std::size_t>(own->peer);
      const Exchange* other = current(peer);
      if (other == nullptr || other->peer != static_cast<int>(rank)) continue;
      REQUIRE((own->sends.count == 0 || own->sends == other->receives));
      REQUIRE((own->receives.count == 0 || own->receives == other->sends));
      moved.push_back(rank);
      messages_ += own->sends.count > 0 ? 1 : 0;
      bytes_[rank] += own->sends.count;
      for (std::int64_t i = own->receives.offset; i < own->receives.offset + own->receives.count;
           ++i) {
        const auto element = static_cast<std::size_t>(i);
        const std::string& first = before[std::min(peer, rank)][element];
        const std::string& second = before[std::max(peer, rank)][element];
        held_[rank][element] =
            own->combines ? "(" + first + "+" + second + ")" : before[peer][element];
      }
    }
    for (const std::size_t rank : moved) ++next_[rank];
    for (const std::size_t rank : moved) {  // once a rank's segment is reduced, divide and scale it
      if (next_[rank] != plans_[rank].reduced_after) continue;
      const Segment own = plans_[rank].own;
      for (std::int64_t i = own.offset; i < own.offset + own.count; ++i) {
        held_[rank][static_cast<std::size_t>(i)] += "!";
        ++divided_;
      }
    }
    return !moved.empty();
  }

  std::vector<RecursivePlan> plans_;
  std::vector<Elements> held_;
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> bytes_;
  int messages_ = 0;
  std::int64_t divided_ = 0;
};

// How often `part` occurs in `text`.
int occurrences(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("all ranks end with the same combination of all, in so many hops") {
  const bool halves = GENERATE(false, true);
  const Planner planner = halves ? halving_plan : doubling_plan;
  for (int size = 2; size <= 40; ++size) {
    for (const std::int64_t count : {1, 2, 5, size, 67}) {
      CAPTURE(size, count);
      Simulation simulation(planner, size, count);
      const int hops = halves ? halving_hops(size) : doubling_hops(size);
      const int rounds = simulation.run();
      REQUIRE((rounds == hops || (halves && count < size && rounds < hops)));
      REQUIRE(simulation.is_over());
      if (halves) REQUIRE(simulation.divided() == count);  // each element by its owner alone
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(simulation.held(rank) == simulation.held(0));
        for (const std::string& element : simulation.held(0)) {
          REQUIRE(occurrences(element, "," + std::to_string(rank) + ",") == 1);
          REQUIRE(occurrences(element, "!") == 1);
        }
      }
    }
  }
}

TEST_CASE("no elements take no exchange") {
  const Planner planner = GENERATE(&halving_plan, &doubling_plan);
  for (int size = 1; size <= 9; ++size) {
    for (int rank = 0; rank < size; ++rank) CHECK(planner(rank, size, 0).exchanges.empty());
  }
}

TEST_CASE("so many messages and hops") {
  const auto messages = [](Planner planner, int size) {
    Simulation simulation(planner, size, 64);
    simulation.run();
    return simulation.messages();
  };
  CHECK(messages(doubling_plan, 2) == 2);
  CHECK(messages(doubling_plan, 4) == 8);
  CHECK(messages(doubling_plan, 6) == 8 + 4);
  CHECK(messages(doubling_plan, 8) == 24);
  CHECK(messages(halving_plan, 4) == 16);
  CHECK(messages(halving_plan, 6) == 16 + 4);
  CHECK(messages(halving_plan, 8) == 48);
  CHECK(doubling_hops(2) == 1);
  CHECK(doubling_hops(4) == 2);
  CHECK(doubling_hops(5) == 4);
  CHECK(doubling_hops(64) == 6);
  CHECK(halving_hops(2) == 2);
  CHECK(halving_hops(5) == 6);
  CHECK(halving_hops(64) == 12);
}

TEST_CASE("with halving a rank sends as much as around a ring") {
  for (const int size : {2, 4, 8, 16}) {
    Simulation simulation(halving_plan, size, 1600);
    simulation.run();
    for (int rank = 0; rank < size; ++rank) {
      CHECK(simulation.sent_by(rank) == 2 * (size - 1) * 1600 / size);
    }
  }
}

TEST_CASE("the table across hosts follows from what links cost") {
  const LinkCosts gigabit{50'000, 8, true};
  const LinkCosts fast{5'000, 0.1, true};
  CHECK(algorithms_across(gigabit, 2, true).to_string() == "doubling:0-256K;hierarchical:256K-");
  CHECK(algorithms_across(gigabit, 4, true).to_string() ==
        "doubling:0-64K;halving:64K-128K;hierarchical:128K-");
  CHECK(algorithms_across(gigabit, 4, false).to_string() ==
        "doubling:0-64K;halving:64K-128K;ring:128K-");
  CHECK(algorithms_across(fast, 4, true).to_string() ==
        "doubling:0-256K;halving:256K-512K;hierarchical:512K-");
  CHECK(algorithms_across({}, 8, true).choose(256 << 10) == Algorithm::halving);
  CHECK(algorithms_across({}, 8, true).choose(1 << 20) == Algorithm::hierarchical);
  CHECK(algorithms_across({}, 7, false).choose(256 << 10) == Algorithm::ring);
  // Four hops among three hosts, as many as on the ring.
  CHECK(algorithms_across(gigabit, 3, true).choose(64 << 10) == Algorithm::hierarchical);
  CHECK(doubling_cost(gigabit, 4, 1000) == 2 * (50'000 + 8'000));
  CHECK(halving_cost(gigabit, 4, 1000) == 4 * 50'000 + 12'000);
  CHECK(halving_cost(gigabit, 6, 1000) == 6 * 50'000 + 28'000);
  CHECK(ring_cost(gigabit, 4, 1000) == 6 * (50'000 + 2'000));
  // Up and down once: with two hosts this saves one hop and transfers the data twice, not once.
  CHECK(eager_limit(gigabit, 2) == 50'000 / 8);
  CHECK(eager_limit(gigabit, 4) == 2 * 50'000 / (2 * 8));
  CHECK(eager_limit(gigabit, 21) == 6 * 50'000 / (8 * (2 * 5 - 6)));
}

TEST_CASE("what hosts have for each other is gathered where messages cost more than copies") {
  LinkCosts costs;
  costs.per_message = 4000;
  costs.per_copied_byte = 0.1;
  CHECK(gathering_limit(costs, 1) == 0);  // nothing to gather
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

TEST_CASE("an option is partial if it leaves any size to measurements") {
  const auto is_partial = [](const char* text) {
    return AlgorithmTable::is_partial(text, Extent::one_host);
  };
  CHECK_FALSE(is_partial("ring"));
  CHECK_FALSE(is_partial("flat"));
  CHECK_FALSE(is_partial("flat:0-16K;direct:16K-"));
  CHECK_FALSE(is_partial("direct:1K-;staged:0-1K"));
  CHECK(is_partial(""));
  CHECK(is_partial("auto"));
  CHECK(is_partial("tree"));  // for several hosts only
  CHECK(is_partial("direct:1K-"));
  CHECK(is_partial("flat:0-8K;direct:16K-"));
  CHECK(is_partial("star"));
}

}  // namespace rueda::test::recursive_plan_test
