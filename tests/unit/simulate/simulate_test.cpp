// The simulator in benchmarks/simulate: its counts match the engine's, and its counts and times
// match the algorithms' closed forms.
#include <barrier>
#include <bit>
#include <catch2/catch.hpp>
#include <random>

#include "core/strings.h"
#include "event_queue.h"
#include "ranks/engine_ranks.h"
#include "report.h"
#include "settings.h"
#include "simulation.h"
#include "workload.h"

namespace rueda::test::simulate_test {
namespace {

using simulate::Result;
using simulate::Settings;
using simulate::StepResult;
using simulate::Traffic;

// All costs are zero except those a test sets.
Settings free_of_cost(int hosts, int ranks_per_host, std::int64_t elements) {
  Settings settings;
  settings.hosts = hosts;
  settings.ranks_per_host = ranks_per_host;
  settings.tensors = {{"tensor", elements}};
  simulate::Costs& costs = settings.costs;
  costs.link.latency = costs.link.per_byte = 0;
  costs.reduce = costs.copy = costs.memory = costs.memory_latency = costs.control_message = 0;
  return settings;
}

double seconds_of(const Settings& settings) {
  return simulate::simulate(settings).steps.back().seconds;
}

std::int64_t sum_over(const StepResult& step, std::int64_t Traffic::* field) {
  std::int64_t sum = 0;
  for (const Traffic& traffic : step.traffic) sum += traffic.*field;
  return sum;
}

TEST_CASE("events come in the order of their times, and of their adding") {
  std::mt19937 random(GENERATE(1U, 2U, 3U));
  simulate::EventQueue<int> queue;
  std::multimap<Time, int> expected;  // equal keys keep insertion order
  for (int added = 0; added < 5000 || !expected.empty();) {
    if (expected.empty() || (added < 5000 && random() % 2 == 0)) {
      const auto ahead = static_cast<int>(random() % 8 == 0 ? random() % 1'000'000 : random() % 4);
      const Time at = queue.now() + Duration(ahead);
      queue.add(at, added);
      expected.emplace(at, added++);
      continue;
    }
    REQUIRE_FALSE(queue.empty());
    REQUIRE(queue.take() == expected.begin()->second);
    REQUIRE(queue.now() == expected.begin()->first);
    expected.erase(expected.begin());
  }
  REQUIRE(queue.empty());
}

TEST_CASE("resnet50 has 161 tensors") {
  const auto tensors = simulate::resnet50();
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.elements;
  REQUIRE(tensors.size() == 161);
  REQUIRE(elements == 25'557'032);
  REQUIRE(tensors.front().name == "fc.bias");
}

TEST_CASE("on a ring each rank sends 2(P-1) messages and 2(P-1)/P of the data") {
  const int ranks = GENERATE(2, 3, 4, 7, 8, 64, 333);
  Settings settings = free_of_cost(ranks, 1, std::int64_t{ranks} * 1000);
  settings.engine.algorithm = "ring";
  for (const StepResult& step : simulate::simulate(settings).steps) {
    for (const Traffic& traffic : step.traffic) {
      REQUIRE(traffic.data_messages == 2 * (ranks - 1));
      REQUIRE(traffic.data_bytes == std::int64_t{2} * (ranks - 1) * 4000);
    }
  }
}

TEST_CASE("a tensor that does not divide evenly goes around whole") {
  const int ranks = GENERATE(2, 5, 8);
  const std::int64_t elements = GENERATE(1, 3, 1001, 300'007);
  Settings settings = free_of_cost(ranks, 1, elements);
  settings.engine.algorithm = "ring";
  const StepResult step = simulate::simulate(settings).steps.back();
  REQUIRE(sum_over(step, &Traffic::data_bytes) == std::int64_t{2} * (ranks - 1) * elements * 4);
}

TEST_CASE("a hierarchy takes the data over each host's link 2(H-1)/H times") {
  const int hosts = GENERATE(2, 3, 8);
  const int ranks = GENERATE(2, 4);
  Settings settings = free_of_cost(hosts, ranks, std::int64_t{hosts} * ranks * 256 * 1024);
  settings.engine.algorithm = "hierarchical";
  const StepResult step = simulate::simulate(settings).steps.back();
  const std::int64_t bytes = settings.tensors.front().elements * 4;
  REQUIRE(sum_over(step, &Traffic::data_bytes) == 2 * (hosts - 1) * bytes);
}

TEST_CASE("the time of a ring is 2(P-1) latencies and 2(P-1)/P of the tensor's on the link") {
  const int ranks = GENERATE(2, 3, 4, 5, 16, 100);
  Settings settings = free_of_cost(ranks, 1, std::int64_t{ranks} * 1000);
  settings.engine.algorithm = "ring";
  SECTION("latency") {
    // Up the tree, down the tree, and around the ring.
    const int depth = ranks == 1 ? 0 : ranks <= 5 ? 1 : ranks <= 21 ? 2 : 4;
    settings.costs.link.latency = 10'000;
    const double hops = seconds_of(settings) / 10e-6;
    REQUIRE(hops >= 2 * (ranks - 1) + 2 - 1e-6);
    REQUIRE(hops <= 2 * (ranks - 1) + 2 * depth + 1e-6);
  }
  SECTION("bytes") {
    // The difference cancels the negotiation, whose size does not depend on the tensors'.
    settings.costs.link.per_byte = 1;
    Settings larger = settings;
    larger.tensors.front().elements *= 3;
    const double more = seconds_of(larger) - seconds_of(settings);
    REQUIRE(more == Approx(2 * (ranks - 1) * 8000 * 1e-9).epsilon(1e-6));
  }
}

TEST_CASE("recursive doubling takes log2(P) times the tensor's time on the link") {
  const int ranks = GENERATE(2, 4, 8, 64);
  Settings settings = free_of_cost(ranks, 1, 1000);
  settings.engine.algorithm = "doubling";
  settings.costs.link.per_byte = 1;
  Settings larger = settings;
  larger.tensors.front().elements *= 3;
  const double more = seconds_of(larger) - seconds_of(settings);
  const int hops = std::countr_zero(static_cast<unsigned>(ranks));
  REQUIRE(more == Approx(hops * 8000 * 1e-9).epsilon(1e-6));
  REQUIRE(simulate::simulate(settings).steps.back().traffic.back().data_messages == hops);
}

TEST_CASE("two trees take the tensor's time on the link twice, and 2 log2(P) latencies") {
  const int ranks = GENERATE(2, 4, 8, 64);
  Settings settings = free_of_cost(ranks, 1, 128 * 1024);
  settings.engine.algorithm = "tree";
  settings.costs.link.per_message = 0;  // makes the smallest chunks optimal
  const int depth = std::countr_zero(static_cast<unsigned>(ranks));
  const StepResult step = simulate::simulate(settings).steps.back();
  const std::int64_t bytes = settings.tensors.front().elements * 4;
  REQUIRE(sum_over(step, &Traffic::data_bytes) == std::int64_t{2} * (ranks - 1) * bytes);
  SECTION("latency") {
    settings.costs.link.latency = 10'000;
    // Plus negotiation up and down its tree of at most three levels, and the last sender's
    // acknowledgement.
    const double hops = seconds_of(settings) / 10e-6;
    REQUIRE(hops >= 2 * depth + 2 - 1e-6);
    REQUIRE(hops <= 2 * depth + 7 + 1e-6);
  }
  SECTION("bytes") {
    settings.costs.link.per_byte = 1;
    const double seconds = seconds_of(settings);
    REQUIRE(seconds >= 1.0 * static_cast<double>(bytes) * 1e-9);
    REQUIRE(seconds <= 2.2 * static_cast<double>(bytes) * 1e-9);
  }
}

TEST_CASE("a backward pass hides what is exchanged meanwhile") {
  Settings settings = free_of_cost(4, 1, 0);
  settings.costs.link.per_byte = 1;
  settings.backward = 0.1;
  // The first tensor takes 6 ms and is ready 90 ms before the pass ends.
  settings.tensors = {{"first", 1'000'000}, {"last", 9'000'000}};
  const double last = 1.5 * 36'000'000 * 1e-9;
  REQUIRE(seconds_of(settings) == Approx(0.1 + last).epsilon(1e-4));
}

TEST_CASE("the same settings have the same results, another seed another one") {
  Settings settings = free_of_cost(GENERATE(3, 20), GENERATE(1, 3), 0);
  settings.tensors = simulate::resnet50();
  settings.costs = {};
  settings.backward = 0.02;
  settings.jitter = 0.003;
  const auto report = [](const Settings& used) {
    Result result = simulate::simulate(used);
    result.control_bytes = 0;  // counts the whole process
    return simulate::as_json(used, result);
  };
  const std::string first = report(settings);
  REQUIRE(first == report(settings));
  settings.seed = 2;
  REQUIRE(first != report(settings));
}

TEST_CASE(
    "no rank has more control messages than its neighbours in the tree, however many there are") {
  const int ranks = GENERATE(2, 10, 100, 700);
  const int fanout = GENERATE(2, 4);
  Settings settings = free_of_cost(ranks, 1, 1);
  settings.tensors.clear();
  for (int i = 0; i < 161; ++i) settings.tensors.push_back({str("tensor.", i), 100});
  settings.fanout = fanout;
  for (const StepResult& step : simulate::simulate(settings).steps) {
    for (const Traffic& traffic : step.traffic) {
      REQUIRE(traffic.control_messages() <= 2 * (fanout + 1));
    }
    REQUIRE(sum_over(step, &Traffic::control_sent) == 2 * (ranks - 1));
  }
}

TEST_CASE("what is small travels with the news that hosts are ready, and nothing else is sent") {
  const int per_host = GENERATE(1, 3);
  Settings settings = free_of_cost(5, per_host, 16);
  settings.costs = {};
  const StepResult step = simulate::simulate(settings).steps.back();
  REQUIRE(step.rounds == 1);
  REQUIRE(step.lists == 0);
  REQUIRE(sum_over(step, &Traffic::data_messages) == 0);
  REQUIRE(sum_over(step, &Traffic::control_sent) == 2 * (settings.hosts - 1));
  REQUIRE(sum_over(step, &Traffic::control_bytes_sent) >= 2 * (settings.hosts - 1) * 64);
  settings.replay = false;
  REQUIRE(sum_over(simulate::simulate(settings).steps.back(), &Traffic::data_messages) > 0);
}

TEST_CASE("what cannot be simulated is refused with what is accepted") {
  const auto refused = [](std::vector<std::string> arguments) {
    const auto settings = simulate::parse(arguments);
    REQUIRE_FALSE(settings.status().ok());
    return settings.status().message();
  };
  REQUIRE(refused({"--hosts", "1"}) == "--hosts must be a number from 2 to 20000, not '1'");
  REQUIRE(refused({"--hosts=two"}) == "--hosts must be a number from 2 to 20000, not 'two'");
  REQUIRE(refused({"--hosts"}) == "--hosts needs a number from 2 to 20000");
  REQUIRE(refused({"--hots", "2"}) == "unknown argument '--hots': see --help");
  REQUIRE(refused({"--json=1"}) == "--json takes no value");
  REQUIRE(refused({"--hosts", "4096", "--ranks-per-host", "4096"}) ==
          "4096 hosts with 4096 ranks each are more than 20000 ranks");
  for (const char* value : {"0", "-1", "nan", "inf", "1e400", "", "1 "}) {
    REQUIRE_FALSE(simulate::parse({"--bandwidth", value}).status().ok());
  }
  for (const char* value :
       {"", "3", "resnet", "4,", ",4", "0x4", "4x", "2000G", "9999999x1G", "-4"}) {
    REQUIRE_FALSE(simulate::parse({"--tensors", value}).status().ok());
  }
  REQUIRE_FALSE(simulate::parse({"--algorithm", "quick"}).status().ok());
  const auto settings = simulate::parse({"--tensors", "3x4K,1M", "--bandwidth=100"});
  REQUIRE(settings->tensors.size() == 4);
  REQUIRE(settings->tensors.back().elements == 256 * 1024);
  REQUIRE(settings->costs.link.per_byte == Approx(0.08));
}

// --- Compared with the engine: what ranks on threads count themselves

struct World {
  int hosts;
  int ranks_per_host;
  std::string algorithm;
  std::int64_t elements;
};

// What each rank of the engine sends in one step, after a first step.
std::vector<Traffic> counted_by_engine(const World& world, int tensors) {
  const int size = world.hosts * world.ranks_per_host;
  std::vector<int> host_of;
  for (int rank = 0; rank < size; ++rank) host_of.push_back(rank / world.ranks_per_host);
  Options options;
  options.algorithm = world.algorithm;
  std::vector<Traffic> counted(static_cast<std::size_t>(size));
  std::barrier together(size);
  run_engines(
      size, options,
      [&](int rank, Runtime& engine) {
        std::vector<std::vector<float>> data(
            static_cast<std::size_t>(tensors),
            std::vector<float>(static_cast<std::size_t>(world.elements)));
        const auto step = [&] {
          std::vector<Submission> group;
          for (std::size_t i = 0; i < data.size(); ++i) {
            group.push_back(allreduce_of(data[i], DataType::float32, str("tensor.", i)));
            group.back().request.group = "step";
            group.back().request.group_size = tensors;
          }
          for (const Handle& handle : engine.submit(0, std::move(group))) finish(handle);
          together.arrive_and_wait();
        };
        const auto count = [&] {
          Traffic traffic;
          traffic.data_messages = metric(engine, "allreduce_messages_sent");
          traffic.data_bytes = metric(engine, "allreduce_payload_bytes_sent");
          traffic.control_sent = metric(engine, "control_messages_sent");
          return traffic;
        };
        step();
        const Traffic before = count();
        together.arrive_and_wait();
        step();
        counted[static_cast<std::size_t>(rank)] = count() - before;
        together.arrive_and_wait();
      },
      nullptr, Sharing::memory, host_of);
  return counted;
}

TEST_CASE("each rank sends what the engine's ranks count themselves") {
  const World world = GENERATE(
      World{2, 1, "ring", 1000}, World{4, 1, "ring", 300'000}, World{5, 1, "doubling", 1000},
      World{4, 1, "doubling", 1000}, World{6, 1, "halving", 1000}, World{4, 2, "halving", 100'000},
      World{2, 2, "hierarchical", 100'000}, World{3, 2, "hierarchical", 1'000'000},
      World{2, 3, "doubling", 1000}, World{2, 2, "ring", 5000}, World{2, 2, "auto", 100},
      World{7, 1, "auto", 100});
  const int tensors = GENERATE(1, 3);
  CAPTURE(world.hosts, world.ranks_per_host, world.algorithm, world.elements, tensors);
  Settings settings = free_of_cost(world.hosts, world.ranks_per_host, 0);
  settings.costs = {};
  settings.engine.algorithm = world.algorithm;
  settings.tensors.clear();
  for (int i = 0; i < tensors; ++i) settings.tensors.push_back({str("tensor.", i), world.elements});
  const StepResult step = simulate::simulate(settings).steps.back();
  const std::vector<Traffic> counted = counted_by_engine(world, tensors);
  REQUIRE(step.traffic.size() == counted.size());
  for (std::size_t rank = 0; rank < counted.size(); ++rank) {
    CAPTURE(rank);
    CHECK(step.traffic[rank].data_messages == counted[rank].data_messages);
    CHECK(step.traffic[rank].data_bytes == counted[rank].data_bytes);
    CHECK(step.traffic[rank].control_sent == counted[rank].control_sent);
  }
}

}  // namespace
}  // namespace rueda::test::simulate_test
