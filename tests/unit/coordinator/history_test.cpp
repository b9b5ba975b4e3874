// The counters of a process over all its worlds.
#include "coordinator/history.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "coordinator/metrics.h"
#include "unit/child_process.h"

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
  first->metrics.tensors_submitted.add(5);  // after the next world has begun
  CHECK(history->values().at("tensors_submitted") == 12);
  first.reset();
  CHECK(history->values().at("tensors_submitted") == 12);
  second.metrics.of(Collective::barrier).batches.add(1);
  CHECK(history->values().at("barrier_batches") == 1);
  CHECK(second.metrics.values().at("tensors_submitted") == 4);  // only its own
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

TEST_CASE("a forked child that drops a world does not wait for a thread that it does not have") {
  const auto history = std::make_shared<History>();
  Metrics metrics;
  std::optional<History::Chapter> chapter(std::in_place, history, metrics);
  std::vector<std::jthread> watchers;  // one of them holds the mutex nearly always
  for (int watcher = 0; watcher < 2; ++watcher) {
    watchers.emplace_back([&](const std::stop_token& end) {
      while (!end.stop_requested()) (void)history->values();
    });
  }
  for (int round = 0; round < 50; ++round) {
    REQUIRE(exit_code_of([&] {
              ::alarm(60);  // ends a child that hangs
              chapter.reset();
            }) == 0);
  }
}

}  // namespace rueda::test::history_test
