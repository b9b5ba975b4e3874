// Agreement without errors, under any order of submissions, messages and flushes, on
// ranks/negotiation_simulator.h.
#include <algorithm>
#include <numeric>

#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_test {
namespace {

constexpr int rounds = 6;
constexpr int group_size = 3;

// What is submitted under one name or group in one round; some shapes change between rounds, some
// repeat.
using Unit = std::vector<Request>;

std::int64_t rows_of(int index, int rank, int round) {
  return (index * 7 + rank + round / 3) % 5;
}

std::vector<Unit> units_of(int rank, int round) {
  std::vector<Unit> units;
  for (int i = 0; i < 5; ++i) {
    units.push_back({allreduce_of(str("sum", i), {i, 1 + (i < 2 ? round / 2 : 0)})});
  }
  for (int i = 0; i < 2; ++i) {
    units.push_back({allgather_of(str("gather", i), rows_of(i, rank, round))});
  }
  Request swap = allreduce_of("swap", {rank + round, 2});
  swap.collective = Collective::alltoall;
  units.push_back({swap});
  units.push_back(group_of("pack", group_size));
  return units;
}

// Each rank submits its rounds in its own order and at its own pace, each as soon as the previous
// round of that name is answered.
class Workload {
 public:
  explicit Workload(NegotiationSimulator& simulator) : simulator_(simulator) {
    for (int rank = 0; rank < simulator.size(); ++rank) {
      std::deque<Unit>& todo = todo_.emplace_back();
      for (int round = 0; round < rounds; ++round) {
        std::vector<Unit> units = units_of(rank, round);
        std::shuffle(units.begin(), units.end(), simulator.random());
        todo.insert(todo.end(), units.begin(), units.end());
      }
    }
  }

  void run(bool busy_root) {
    std::size_t left = todo_.size() * todo_.front().size();
    while (left > 0) {
      const int rank = simulator_.below(simulator_.size());
      left -= try_submit(rank) ? 1 : 0;
      simulator_.steps(simulator_.below(4));
      if (busy_root) simulator_.set_busy(0, simulator_.below(3) > 0);
    }
    simulator_.set_busy(0, false);
    simulator_.settle();
  }

 private:
  bool try_submit(int rank) {
    std::deque<Unit>& todo = todo_[static_cast<std::size_t>(rank)];
    if (todo.empty()) return false;
    if (simulator_.rank(rank).pending.contains(todo.front().front().name)) return false;
    REQUIRE(simulator_.submit(rank, todo.front()).ok());
    todo.pop_front();
    return true;
  }

  NegotiationSimulator& simulator_;
  std::vector<std::deque<Unit>> todo_;
};

void require_answers(NegotiationSimulator& simulator) {
  for (int round = 0; round < rounds; ++round) {
    for (int rank = 0; rank < simulator.size(); ++rank) {
      for (const Unit& unit : units_of(rank, round)) {
        for (const Request& request : unit) {
          const auto& answers = simulator.rank(rank).answers.at(request.name);
          REQUIRE(answers.size() == rounds);
          const Response& response = answers[static_cast<std::size_t>(round)];
          REQUIRE(response.kind == ResponseKind::execute);
          REQUIRE_FALSE(compare(response.request, request));
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < simulator.size(); ++rank) rows.push_back(rows_of(i, rank, round));
      const auto& answers = simulator.rank(0).answers.at(str("gather", i));
      REQUIRE(answers[static_cast<std::size_t>(round)].first_extents == rows);
    }
  }
}

void require_groups_together(const NegotiationSimulator& simulator) {
  for (const ResponseList& list : simulator.agreed) {
    for (std::size_t i = 0; i < list.size();) {
      if (list[i].request.group.empty()) {
        ++i;
        continue;
      }
      for (int member = 0; member < group_size; ++member, ++i) {
        REQUIRE(i < list.size());
        REQUIRE(list[i].request.name == str("pack.", member));
      }
    }
  }
}

TEST_CASE("all ranks execute the same in the same order, every name once per round") {
  const std::int64_t capacity = GENERATE(0, 1, 3, 1024);
  const bool busy_root = GENERATE(false, true);
  int unknown = 0;
  for (int size = 1; size <= 17; size += size < 5 ? 1 : effort(1, 6)) {
    for (const int fanout : efforts({1, 2, 3, 4}, {1, 3})) {
      CAPTURE(size, fanout, capacity, busy_root);
      NegotiatorOptions options;
      options.fanout = fanout;
      options.cache_capacity = capacity;
      NegotiationSimulator simulator(size, options, static_cast<unsigned>(size * 4 + fanout));
      Workload(simulator).run(busy_root);
      simulator.require_agreement();
      require_answers(simulator);
      require_groups_together(simulator);
      unknown += simulator.unknown_ids_messages();
    }
  }
  // Cache numbers cross evictions if the cache is smaller than the workload.
  const bool evicts = capacity == 1 || capacity == 3;
  REQUIRE((unknown > effort(100, 10)) == evicts);
}

TEST_CASE("a repeated step travels as numbers on every edge of the tree") {
  for (int size = 2; size <= 17; size += size < 5 ? 1 : effort(1, 6)) {
    NegotiatorOptions options;
    options.fanout = 1 + size % 4;
    NegotiationSimulator simulator(size, options, static_cast<unsigned>(size));
    Workload(simulator).run(false);
    std::size_t names = 0;
    simulator.reset_counts();
    for (int rank = 0; rank < size; ++rank) {
      names = 0;
      for (const Unit& unit : units_of(rank, rounds - 1)) {
        REQUIRE(simulator.submit(rank, unit).ok());
        names += unit.size();
      }
    }
    simulator.settle();
    simulator.require_agreement();
    REQUIRE(simulator.largest_message() <= 12 + 3 * names);
  }
}

// A rank that is assumed to have memory would not tell the others that it has none.
TEST_CASE("memory for results counts only where all ranks have as much, also in what repeats") {
  const std::int64_t capacity = GENERATE(0, 1024);
  std::mt19937 random(7);
  int counted = 0;
  for (int size = 1; size <= 9; ++size) {
    NegotiatorOptions options;
    options.fanout = 1 + size % 3;
    options.cache_capacity = capacity;
    NegotiationSimulator simulator(size, options, static_cast<unsigned>(size));
    for (int round = 0; round < effort(40, 20); ++round) {
      const std::size_t usual = 100 * (1 + random() % 2);
      bool alike = true;
      for (int rank = 0; rank < size; ++rank) {
        Request request = allgather_of("gather", 3);
        request.on_gpu = true;
        const bool differs = size > 1 && random() % (4 * static_cast<unsigned>(size)) == 0;
        request.output_bytes = differs ? 7 : usual;
        alike = alike && !differs;
        REQUIRE(simulator.submit(rank, request).ok());
        simulator.steps(simulator.below(4));
      }
      simulator.settle();
      simulator.require_agreement();
      const std::size_t agreed = simulator.rank(0).answers.at("gather").back().request.output_bytes;
      CAPTURE(size, round, usual, agreed, alike);
      REQUIRE((agreed == 0 || (alike && agreed == usual)));
      if (agreed != 0) ++counted;
    }
  }
  REQUIRE(counted > effort(60, 30));
}

TEST_CASE("every node on the way to the root is told of a rank that is ready, once a round") {
  for (const int fanout : {1, 2, 4}) {
    CAPTURE(fanout);
    std::vector<int> told(5, 0);
    NegotiatorOptions options;
    options.fanout = fanout;
    options.on_ready = [&](const Request& request, std::span<const int> ranks, Time) {
      CHECK(request.name == "x");
      for (const int rank : ranks) ++told[static_cast<std::size_t>(rank)];
    };
    NegotiationSimulator simulator(5, options, 1);
    const auto round = [&](int ranks) {
      std::fill(told.begin(), told.end(), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        REQUIRE(simulator.submit(rank, allreduce_of("x")).ok());
      }
      simulator.settle();
      return told;
    };
    std::vector<int> nodes(5);  // from the rank to the root, inclusive
    for (int rank = 0; rank < 5; ++rank) {
      for (int node = rank; node > 0; node = Tree(node, 5, fanout).parent())
        ++nodes[static_cast<std::size_t>(rank)];
      ++nodes[static_cast<std::size_t>(rank)];
    }
    CHECK(round(5) == nodes);
    CHECK(round(5) == nodes);  // from the caches
    simulator.join(4);
    simulator.settle();
    nodes[4] = 0;
    CHECK(round(4) == nodes);
  }
}

TEST_CASE("a busy root holds back until the fusion threshold, a lull or the end") {
  NegotiatorOptions options;
  options.fusion_threshold = 3 * 16;
  NegotiationSimulator simulator(3, options, 1);
  simulator.set_busy(0, true);
  const auto submit_all = [&](const std::string& name) {
    for (int rank = 0; rank < 3; ++rank) REQUIRE(simulator.submit(rank, allreduce_of(name)).ok());
    simulator.settle();
  };
  submit_all("a");
  submit_all("b");
  REQUIRE(simulator.agreed.empty());
  REQUIRE(simulator.negotiator(0).holds_back());
  submit_all("c");  // 3 tensors of 16 bytes
  REQUIRE(simulator.agreed.size() == 1);
  REQUIRE(simulator.agreed.front().size() == 3);
  submit_all("d");
  REQUIRE(simulator.agreed.size() == 1);
  simulator.set_busy(0, false);
  simulator.settle();
  REQUIRE(simulator.agreed.size() == 2);
  REQUIRE_FALSE(simulator.negotiator(0).holds_back());
  simulator.set_busy(0, true);
  submit_all("e");
  simulator.leave(2);
  simulator.settle();
  REQUIRE(simulator.agreed.size() == 4);  // e, then the end
  simulator.require_agreement();
}

Request urgent(const std::string& name, std::int32_t priority) {
  Request request = allreduce_of(name);
  request.priority = priority;
  return request;
}

std::vector<std::string> names_of(const ResponseList& list) {
  std::vector<std::string> names;
  for (const Response& response : list) names.push_back(response.request.name);
  return names;
}

TEST_CASE("of what is ready the most urgent goes first, on all ranks in the same order") {
  NegotiationSimulator simulator(3, {}, 1);
  const std::vector<std::pair<std::string, int>> all{{"a", -2}, {"b", 0}, {"c", 5}, {"d", 0}};
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& [name, priority] : all) {
      REQUIRE(simulator.submit(rank, urgent(name, priority)).ok());
    }
  }
  simulator.set_busy(0, true);
  simulator.settle();
  REQUIRE(simulator.agreed.empty());
  simulator.set_busy(0, false);
  simulator.settle();
  REQUIRE(simulator.agreed.size() == 1);
  CHECK(names_of(simulator.agreed.front()) == std::vector<std::string>{"c", "b", "d", "a"});
  simulator.require_agreement();
}

TEST_CASE("a busy root lets go what is more urgent than what is under way, and what is large") {
  NegotiationSimulator simulator(3, {}, 1);
  simulator.negotiator(0).set_load({.is_busy = true, .most_urgent = 2, .large = 64});
  Request large = allreduce_of("large");
  large.shape = {16};
  for (int rank = 0; rank < 3; ++rank) {
    for (const Request& request :
         {urgent("less", 1), urgent("equal", 2), urgent("more", 3), large}) {
      REQUIRE(simulator.submit(rank, request).ok());
    }
  }
  simulator.settle();
  std::vector<std::string> gone;
  for (const ResponseList& list : simulator.agreed) {
    for (const std::string& name : names_of(list)) gone.push_back(name);
  }
  std::sort(gone.begin(), gone.end());
  CHECK(gone == std::vector<std::string>{"large", "more"});
  CHECK(simulator.negotiator(0).holds_back());
  simulator.set_busy(0, false);
  simulator.settle();
  CHECK(names_of(simulator.agreed.back()) == std::vector<std::string>{"equal", "less"});
  simulator.require_agreement();
}

}  // namespace
}  // namespace rueda::test::negotiation_test
