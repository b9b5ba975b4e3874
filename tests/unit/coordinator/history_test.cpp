// What a process has counted in all its worlds.
#include "coordinator/history.h"

#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "coordinator/metrics.h"

namespace rueda::test::history_test {

namespace {

struct World {
  explicit World(const std::shared_ptr<History>& history) : chapter(history, metrics) {}

  Metrics metrics;
  const History::Chapter chapter;
};

}  // namespace

TEST_CASE("worlds add to what their process has counted, and what they have counted stays") {
  const auto history = std::make_shared<History>();
  CHECK(history->values().empty());
  auto first = std::make_unique<World>(history);
  first->metrics.tensors_submitted.add(3);
  World second(history);
  second.metrics.tensors_submitted.add(4);
  first->metrics.tensors_submitted.add(5);  // while the next one begins
  CHECK(history->values().at("tensors_submitted") == 12);
  first.reset();
  CHECK(history->values().at("tensors_submitted") == 12);
  second.metrics.of(Collective::barrier).batches.add(1);
  CHECK(history->values().at("barrier_batches") == 1);
  CHECK(second.metrics.values().at("tensors_submitted") == 4);  // its own
}

TEST_CASE("nothing is missing or twice while worlds end and threads count and look") {
  const auto history = std::make_shared<History>();
  std::jthread ends([&](const std::stop_token& end) {
    while (!end.stop_requested()) {
      World world(history);
      world.metrics.sleeps.add(1);
    }
  });
  World world(history);
  std::int64_t before = 0;
  for (int round = 1; round <= 1000; ++round) {
    world.metrics.looks.add(1);
    const auto values = history->values();
    REQUIRE(values.at("looks") == round);
    REQUIRE(values.at("sleeps") >= before);
    before = values.at("sleeps");
  }
}

}  // namespace rueda::test::history_test
