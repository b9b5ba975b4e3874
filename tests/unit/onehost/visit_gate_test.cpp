// What a gate protects is removed only when no visitor is inside, in any order of events.
#include "onehost/visit_gate.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "effort.h"
#include "ranks/rank_threads.h"

namespace rueda::test::visit_gate_test {

TEST_CASE("a gate lets a visitor in and out until it is closed") {
  VisitGate gate;
  REQUIRE(gate.enter());
  CHECK_FALSE(gate.leave());
  REQUIRE(gate.enter());
  CHECK_FALSE(gate.close());
  CHECK(gate.leave());
  CHECK_FALSE(gate.enter());
  CHECK_FALSE(gate.enter());
}

TEST_CASE("a gate that is closed while nobody is inside lets nobody in") {
  VisitGate gate;
  REQUIRE(gate.enter());
  CHECK_FALSE(gate.leave());
  CHECK(gate.close());
  CHECK_FALSE(gate.enter());
}

// The side that learns that no visitor is inside removes what the gate protects.
TEST_CASE("nobody is inside any more once either has been told so") {
  const bool fences_for_others = GENERATE(true, false);
  if (fences_for_others && !can_fence_for_others()) return;
  const int worlds = effort(300, 100);
  for (int world = 0; world < worlds; ++world) {
    VisitGate gate(fences_for_others);
    std::atomic<bool> is_there{true};
    std::atomic<int> visits{0};
    const auto take_away = [&] { is_there = false; };
    std::thread visitor([&] {
      bool is_last = false;
      while (!is_last && gate.enter()) {
        expect(is_there, "what is visited is there");
        visits.fetch_add(1, std::memory_order_relaxed);
        expect(is_there, "what is visited stays there");
        is_last = gate.leave();
      }
      take_away();
    });
    while (visits.load(std::memory_order_relaxed) < world % 7) std::this_thread::yield();
    if (gate.close()) take_away();
    visitor.join();
    CHECK(!is_there.load());
    CHECK_FALSE(gate.enter());
  }
}

}  // namespace rueda::test::visit_gate_test
