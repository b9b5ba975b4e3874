// The readiness table alone, on memory shared by threads.
#include "onehost/readiness_table.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "ranks/rank_threads.h"

namespace rueda::test::readiness_table_test {

namespace {

class SharedBoard {
 public:
  SharedBoard(int slots, int members) : slots_(slots), members_(members) {
    const std::size_t bytes = (ReadinessTable::bytes(slots) + 63) / 64 * 64;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
    std::fill_n(memory_.get(), bytes, std::byte{0});
  }
  [[nodiscard]] ReadinessTable view() const { return {memory_.get(), slots_, members_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  int slots_;
  int members_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace

TEST_CASE("a round is entered when the last member has joined, and then the next begins") {
  const SharedBoard shared(4, 2);
  ReadinessTable first = shared.view();
  ReadinessTable second = shared.view();
  const ReadinessTable::Plan plan{3, 1};
  for (std::uint64_t round = 0; round < 10000; ++round) {  // more than fit in a word's counter
    REQUIRE(first.join(plan, round) == ReadinessTable::Joined::waiting);
    REQUIRE(first.look(plan, round) == ReadinessTable::State::open);
    REQUIRE(!first.read(round));
    REQUIRE(second.join(plan, round) == ReadinessTable::Joined::completed);
    REQUIRE(first.look(plan, round) == ReadinessTable::State::decided);
    REQUIRE(first.read(round)->slot == 3);
    REQUIRE(!first.read(round + 1));
  }
}

TEST_CASE("what is cancelled stays so, but not what was decided before") {
  const SharedBoard shared(4, 2);
  ReadinessTable first = shared.view();
  ReadinessTable second = shared.view();
  const ReadinessTable::Plan plan{0, 1};
  (void)first.join(plan, 0);
  CHECK(second.cancel(plan));
  CHECK_FALSE(first.cancel(plan));
  CHECK(first.look(plan, 0) == ReadinessTable::State::off);
  CHECK(second.join(plan, 0) == ReadinessTable::Joined::off);
  CHECK(second.calls_off() == 1);

  const ReadinessTable::Plan later{1, 2};
  (void)first.join(later, 0);
  (void)second.join(later, 0);
  CHECK(second.cancel(later));
  CHECK(first.look(later, 0) == ReadinessTable::State::decided);
  CHECK(first.join(later, 1) == ReadinessTable::Joined::off);
  CHECK(first.is_cancelled(later));
}

TEST_CASE("a slot serves one plan after the other") {
  const SharedBoard shared(1, 2);
  ReadinessTable first = shared.view();
  ReadinessTable second = shared.view();
  (void)first.join({0, 1}, 0);
  CHECK(second.cancel({0, 1}));
  CHECK(second.join({0, 7}, 0) ==
        ReadinessTable::Joined::waiting);  // already knows of the later plan
  CHECK(first.look({0, 1}, 0) == ReadinessTable::State::gone);
  CHECK(first.is_cancelled({0, 1}));
  CHECK(first.join({0, 1}, 0) == ReadinessTable::Joined::off);
  CHECK_FALSE(first.cancel({0, 1}));
  CHECK(first.join({0, 7}, 0) == ReadinessTable::Joined::completed);
  CHECK(second.read(0)->slot == 0);
}

TEST_CASE("a plan can be cancelled before anybody has joined it") {
  const SharedBoard shared(1, 2);
  ReadinessTable first = shared.view();
  ReadinessTable second = shared.view();
  CHECK(first.cancel({0, 5}));
  CHECK(second.join({0, 5}, 0) == ReadinessTable::Joined::off);
  CHECK(second.join({0, 6}, 0) == ReadinessTable::Joined::waiting);
}

// Each member runs the rounds of each plan as fast as it can, in its own order, and sometimes
// cancels a plan. All then continue with the plan's successor.
TEST_CASE("all members see the same outcome of every round, and the same order") {
  constexpr int slots = 6;
  constexpr int plans_per_slot = 40;
  const int members = GENERATE(2, 3, 4);
  const SharedBoard shared(slots, members);
  std::vector<std::vector<int>> logs(static_cast<std::size_t>(members));
  using Rounds = std::map<std::pair<int, int>, std::uint64_t>;  // by slot and plan
  std::vector<Rounds> executed(static_cast<std::size_t>(members));
  // No slot gets its next plan before all members know that the last one was cancelled.
  std::array<std::array<std::atomic<int>, plans_per_slot>, slots> heard{};

  run_ranks(members, [&](int member) {
    ReadinessTable table = shared.view();
    std::mt19937 random(static_cast<unsigned>(member) + 1);
    struct Slot {
      int index = 0;  // of the plan
      std::uint64_t round = 0;
      bool joined = false;
      bool counted = false;
    };
    std::array<Slot, slots> own;
    auto& log = logs[static_cast<std::size_t>(member)];
    const auto plan_of = [&](int slot) {
      return ReadinessTable::Plan{
          slot,
          static_cast<std::uint64_t>(own[static_cast<std::size_t>(slot)].index * slots + slot + 1)};
    };
    const auto read_all = [&] {
      while (const auto entry = table.read(log.size())) {
        log.push_back(entry->slot);
        Slot& read = own[static_cast<std::size_t>(entry->slot)];
        expect(read.joined, "no round without this member");
        read.joined = false;
        ++read.round;
      }
    };
    const Time limit = soon();
    int finished = 0;
    while (finished < slots) {
      expect(Clock::now() < limit, "no hang");
      finished = 0;
      for (int step = 0; step < slots; ++step) {
        const int slot = static_cast<int>(random() % slots);
        Slot& state = own[static_cast<std::size_t>(slot)];
        if (state.index == plans_per_slot) continue;
        std::atomic<int>& heard_of =
            heard[static_cast<std::size_t>(slot)][static_cast<std::size_t>(state.index)];
        if (!state.counted) {
          if (!state.joined) {
            if (random() % 50 == 0) table.cancel(plan_of(slot));
            state.joined = table.join(plan_of(slot), state.round) != ReadinessTable::Joined::off;
          }
          read_all();
          const bool off =
              state.joined ? table.look(plan_of(slot), state.round) == ReadinessTable::State::off
                           : table.is_cancelled(plan_of(slot));
          if (!off) continue;
          state.counted = true;
          ++heard_of;
        }
        if (heard_of < members) continue;
        executed[static_cast<std::size_t>(member)][{slot, state.index}] = state.round;
        state = {state.index + 1, 0, false, false};
      }
      for (const Slot& state : own) finished += state.index == plans_per_slot ? 1 : 0;
      std::this_thread::yield();  // lets other members run if they outnumber the cores
    }
  });
  for (int member = 1; member < members; ++member) {
    CHECK(logs[static_cast<std::size_t>(member)] == logs.front());
    CHECK(executed[static_cast<std::size_t>(member)] == executed.front());
  }
  CHECK(logs.front().size() > plans_per_slot);
}

}  // namespace rueda::test::readiness_table_test
