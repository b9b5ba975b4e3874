// Ranks that run out of data (join) and ranks that shut down (leave).
#include <set>

#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_join_test {
namespace {

NegotiatorOptions options_for(unsigned seed) {
  NegotiatorOptions options;
  options.fanout = 1 + static_cast<int>(seed % 4);
  options.cache_capacity = seed % 3 == 2 ? 1024 : seed % 3;
  return options;
}

std::vector<Request> step_of(int rank, int step) {
  std::vector<Request> requests{allreduce_of("sum"), allgather_of("gather", 1 + (rank + step) % 3),
                                allreduce_of(str("new", step))};
  for (int i = 0; i < 3; ++i) requests.push_back(allreduce_of(str("sum.", i)));
  return requests;
}

bool submit_step(NegotiationSimulator& simulator, int rank, int step) {
  for (const Request& request : step_of(rank, step)) {
    if (simulator.rank(rank).pending.contains(request.name)) return false;
  }
  for (const Request& request : step_of(rank, step)) {
    if (!simulator.submit(rank, request).ok()) return false;
    simulator.steps(simulator.below(2));
  }
  return true;
}

// Every rank submits its own number of steps and joins without waiting for its last answers.
void run_epoch(NegotiationSimulator& simulator, const std::vector<int>& steps) {
  const std::size_t size = steps.size();
  std::vector<int> done(size, 0);
  std::vector<bool> joined(size, false);
  for (std::size_t open = size; open > 0;) {
    const int rank = simulator.below(simulator.size());
    const auto index = static_cast<std::size_t>(rank);
    if (!joined[index] && done[index] < steps[index]) {
      if (submit_step(simulator, rank, done[index])) ++done[index];
    } else if (!joined[index]) {
      simulator.join(rank);
      joined[index] = true;
      --open;
    }
    simulator.steps(simulator.below(4));
  }
  simulator.settle();
}

void require_epoch(NegotiationSimulator& simulator, const std::vector<int>& steps,
                   std::size_t first_list) {
  std::map<std::string, int> seen;
  for (std::size_t i = first_list; i < simulator.agreed.size(); ++i) {
    for (const Response& response : simulator.agreed[i]) {
      if (response.kind == ResponseKind::joined) continue;
      REQUIRE(response.kind == ResponseKind::execute);
      const std::string& name = response.request.name;
      const bool fresh = name.starts_with("new");
      const int step = fresh ? std::stoi(name.substr(3)) : seen[name]++;
      std::vector<int> absent;
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < simulator.size(); ++rank) {
        const bool takes_part = step < steps[static_cast<std::size_t>(rank)];
        if (!takes_part) absent.push_back(rank);
        rows.push_back(takes_part ? 1 + (rank + step) % 3 : 0);
      }
      REQUIRE(response.absent == absent);
      if (response.request.collective == Collective::allgather) {
        REQUIRE(response.first_extents == rows);
      }
    }
  }
  const int most = *std::max_element(steps.begin(), steps.end());
  REQUIRE(seen["sum"] == most);
  REQUIRE(seen["gather"] == most);
}

TEST_CASE("who has joined is absent from exactly what it has not submitted, epoch after epoch") {
  int unknown = 0;
  for (unsigned seed = 0; seed < effort(300U, 30U); ++seed) {
    const int size = 1 + static_cast<int>(seed % 13);
    CAPTURE(seed, size);
    NegotiationSimulator simulator(size, options_for(seed), seed);
    for (std::size_t epoch = 1; epoch <= 3; ++epoch) {
      std::vector<int> steps;
      for (int rank = 0; rank < size; ++rank) steps.push_back(simulator.below(7));
      const std::size_t first_list = simulator.agreed.size();
      run_epoch(simulator, steps);
      simulator.require_agreement();
      require_epoch(simulator, steps, first_list);
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(simulator.rank(rank).last_joined.size() == epoch);
      }
    }
    unknown += simulator.unknown_ids_messages();
  }
  REQUIRE(unknown > effort(20, 0));
}

TEST_CASE("the last to join is the one whose word came last") {
  NegotiationSimulator simulator(7, options_for(2), 5);
  for (const int rank : {3, 0, 6, 1, 5, 2, 4}) {
    simulator.join(rank);
    simulator.settle();
  }
  for (int rank = 0; rank < 7; ++rank) REQUIRE(simulator.rank(rank).last_joined == std::vector{4});
}

TEST_CASE("what cannot be done without the joined ranks fails on all others") {
  NegotiationSimulator simulator(6, options_for(1), 9);
  Request request = allreduce_of("x", {2, 2});
  request.collective =
      GENERATE(Collective::broadcast, Collective::alltoall, Collective::persistent_allreduce);
  request.root = request.collective == Collective::broadcast ? 4 : -1;
  simulator.join(4);
  for (int rank = 0; rank < 6; ++rank) {
    if (rank != 4) REQUIRE(simulator.submit(rank, request).ok());
  }
  simulator.settle();
  simulator.require_agreement();
  const Response& answer = simulator.rank(0).answers.at("x").front();
  REQUIRE(answer.status.code() == ErrorCode::invalid_argument);
  REQUIRE(answer.status.to_string().find("rank 4") != std::string::npos);
}

TEST_CASE("a group that can no longer become complete fails when all have joined") {
  NegotiationSimulator simulator(5, options_for(2), 2);
  for (int rank = 0; rank < 5; ++rank) {
    std::vector<Request> part = group_of("g", 3);
    part.resize(2);
    REQUIRE(simulator.submit(rank, part).ok());
  }
  simulator.settle();
  REQUIRE(simulator.agreed.empty());
  for (int rank = 0; rank < 5; ++rank) simulator.join(rank);
  simulator.settle();
  simulator.require_agreement();
  REQUIRE(simulator.rank(2).answers.at("g.1").front().status.code() == ErrorCode::mismatch);
  REQUIRE(simulator.rank(2).last_joined.size() == 1);
}

TEST_CASE(
    "when ranks leave, at any moment, all are closed for the same reason and nothing is open") {
  for (unsigned seed = 0; seed < effort(300U, 30U); ++seed) {
    const int size = 1 + static_cast<int>(seed % 13);
    CAPTURE(seed, size);
    NegotiationSimulator simulator(size, options_for(seed), seed);
    simulator.set_busy(0, seed % 2 == 0);
    const int leaver = simulator.below(size);
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < size; ++rank) {
        if (simulator.negotiator(rank).closed().ok() && simulator.below(8) > 0) {
          submit_step(simulator, rank, step);
        }
        if (step == 1 && rank == leaver) simulator.leave(rank);
        if (step == 1 && simulator.below(6) == 0) simulator.leave(rank);
        simulator.steps(simulator.below(5));
        if (simulator.below(20) == 0) simulator.settle();
      }
    }
    simulator.settle();
    simulator.require_agreement();
    for (int rank = 0; rank < size; ++rank) {
      const Status& closed = simulator.negotiator(rank).closed();
      REQUIRE(closed.code() == ErrorCode::shutdown);
      REQUIRE(closed.to_string() == simulator.negotiator(0).closed().to_string());
      REQUIRE(simulator.submit(rank, allreduce_of("late")).code() == ErrorCode::shutdown);
    }
  }
}

// A rank's operations of one name, each submitted after the previous one completes, until the set
// is removed.
struct Retiring {
  int left = 0;
  bool has_begun = false;
};

void go_on(NegotiationSimulator& simulator, int rank, Retiring& self) {
  if (!simulator.negotiator(rank).closed().ok()) return;
  if (self.left > 0 && !simulator.rank(rank).pending.contains("again")) {
    REQUIRE(simulator.submit(rank, allreduce_of("again")).ok());
    --self.left;
  }
  if (self.has_begun) simulator.retire(rank, self.left > 0);
}

TEST_CASE("what all submitted before they retire is done, and the set ends with the last of them") {
  int unknown = 0;
  for (unsigned seed = 0; seed < effort(600U, 60U); ++seed) {
    const int size = 1 + static_cast<int>(seed % 13);
    CAPTURE(seed, size);
    NegotiationSimulator simulator(size, options_for(seed), seed);
    for (int step = 0; step < simulator.below(4); ++step) {
      for (int rank = 0; rank < size; ++rank) submit_step(simulator, rank, step);
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(simulator.submit(rank, allreduce_of("again")).ok());
      }
      simulator.settle();
    }
    simulator.set_busy(0, seed % 2 == 0);
    const std::size_t first_list = simulator.agreed.size();
    std::vector<Retiring> ranks(static_cast<std::size_t>(size));
    for (Retiring& self : ranks) self.left = simulator.below(4);
    const auto fewest =
        std::min_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
          return a.left < b.left;
        })->left;
    for (int rank = 0; rank < size; ++rank) {
      if (simulator.below(8) > 0) submit_step(simulator, rank, 100);  // not on all ranks
    }
    // All start eventually; a rank that waits continues with each list of responses.
    for (int rest = size; rest > 0;) {
      const int rank = simulator.below(size);
      Retiring& self = ranks[static_cast<std::size_t>(rank)];
      if (!self.has_begun) --rest;
      self.has_begun = true;
      go_on(simulator, rank, self);
      simulator.steps(simulator.below(5));
    }
    do {
      for (int rank = 0; rank < size; ++rank) {
        go_on(simulator, rank, ranks[static_cast<std::size_t>(rank)]);
      }
    } while (simulator.step());
    simulator.require_agreement();
    int done = 0;
    for (std::size_t i = first_list; i < simulator.agreed.size(); ++i) {
      for (const Response& response : simulator.agreed[i]) {
        if (response.request.name == "again") ++done;
      }
    }
    REQUIRE(done == fewest);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(simulator.negotiator(rank).closed().code() == ErrorCode::shutdown);
    }
    unknown += simulator.unknown_ids_messages();
  }
  REQUIRE(unknown > effort(20, 0));
}

}  // namespace
}  // namespace rueda::test::negotiation_join_test
