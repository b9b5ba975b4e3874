// Rounds that a rank has begun, and how long it waits for them.
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <random>

#include "coordinator/plan_table.h"
#include "core/strings.h"

namespace rueda::test::open_rounds_test {

namespace {

using namespace std::chrono_literals;

// Makes a plan of one tensor, which has been submitted.
void fill(ReplayPlan& plan, Time since) {
  auto response = std::make_shared<Response>();
  response->request.name = "x";
  plan.members = plan.collected = 1;
  plan.since = since;
  Submission submission;
  submission.request = response->request;
  submission.handle = std::make_shared<HandleState>();
  plan.batches.emplace_back();
  plan.batches.back().push_back({std::move(response), std::move(submission)});
}

}  // namespace

TEST_CASE("a round is overdue from the deadline on that was told, and not before") {
  std::mt19937 random(GENERATE(range(0U, 200U)));
  const auto moment = [&random] { return Time() + std::chrono::microseconds(random() % 20'000); };
  const Duration stall = random() % 4 == 0 ? Duration() : Duration(5ms);
  OpenRounds rounds(2ms, [stall] { return stall; });
  std::deque<ReplayPlan> plans(random() % 6);
  // The plans are joined in order of time.
  Time joined_at{};
  for (ReplayPlan& plan : plans) {
    if (random() % 2 == 0) {
      fill(plan, moment());
      rounds.collect(plan);
    } else {
      fill(plan, joined_at += std::chrono::microseconds(random() % 5'000));
      plan.off = random() % 4 == 0;
      rounds.join(plan);
    }
  }
  const auto deadline = rounds.next_deadline();
  if (!deadline) {
    CHECK(rounds.overdue(Time() + 1h) == nullptr);
    CHECK(rounds.collecting().empty());
    return;
  }
  CHECK(rounds.overdue(*deadline - 1us) == nullptr);
  ReplayPlan* const overdue = rounds.overdue(*deadline);
  REQUIRE(overdue != nullptr);
  CHECK(*deadline == overdue->since + (overdue->joined ? stall : Duration(2ms)));
}

TEST_CASE("who waits for a member of a plan does not wait for the others to be submitted") {
  OpenRounds rounds(2ms, [] { return Duration(10s); });
  ReplayPlan plan;
  fill(plan, Time());
  rounds.collect(plan);
  CHECK(rounds.overdue(Time() + 1ms) == nullptr);
  const HandleState::Waiting waiting(*plan.batches[0][0].submission->handle.state());
  CHECK(rounds.overdue(Time() + 1ms) == &plan);
}

TEST_CASE("a round is over when it has been executed, or given up with all that it holds") {
  OpenRounds rounds(2ms, [] { return Duration(10s); });
  ReplayPlan plan;
  fill(plan, Time());
  rounds.collect(plan);
  CHECK_FALSE(rounds.empty());
  rounds.stop_collecting(plan);
  CHECK(rounds.empty());
  rounds.join(plan);
  REQUIRE(rounds.is_joined(&plan));
  SECTION("executed") {
    rounds.finish(plan);
    CHECK(plan.round == 1);
  }
  SECTION("given up") {
    const std::vector<Submission> held = rounds.abandon(plan);
    REQUIRE(held.size() == 1);
    CHECK(held.front().request.name == "x");
    CHECK_FALSE(plan.batches[0][0].submission);
    CHECK(plan.round == 0);
  }
  CHECK(rounds.empty());
  CHECK((!plan.joined && plan.collected == 0));
}

}  // namespace rueda::test::open_rounds_test
