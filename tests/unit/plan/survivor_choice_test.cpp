// Who remains in an epoch that broke, and who may go on.
#include "plan/survivor_choice.h"

#include <catch2/catch.hpp>
#include <random>

#include "plan/rank_list.h"

namespace rueda::test::survivor_choice_test {

using Members = std::vector<int>;

TEST_CASE("who is lost is who has most broken links") {
  const Members four{0, 1, 2, 3};
  CHECK(choose_survivors(four, {}) == four);
  CHECK(choose_survivors(four, {{7, 1}, {2, 9}}) == four);  // not members
  // No rank hears 0; then 0 hears no rank.
  CHECK(choose_survivors(four, {{1, 0}, {2, 0}, {3, 0}}) == Members{1, 2, 3});
  CHECK(choose_survivors(four, {{0, 1}, {0, 2}, {0, 3}}) == Members{1, 2, 3});
  // One reports another as silent, and gets no answer; then each reports the other.
  CHECK(choose_survivors(four, {{2, 1}}) == Members{0, 2, 3});
  CHECK(choose_survivors(four, {{2, 1}, {1, 2}}) == Members{0, 1, 3});
  // 2|2 as each side sees it, only one of which is a majority; 3|1 as the isolated one sees it.
  CHECK(choose_survivors(four, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}) == Members{0, 1});
  CHECK(choose_survivors(four, {{2, 0}, {2, 1}, {3, 0}, {3, 1}}) == Members{2, 3});
  CHECK(choose_survivors(four, {{3, 0}, {3, 1}, {3, 2}}) == Members{0, 1, 2});
}

TEST_CASE("those that stay reach each other, and nobody goes without need") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(1, 300))));
  const int size = 2 + static_cast<int>(random() % 9);
  Members members;
  for (int i = 0; i < size; ++i) members.push_back(2 * i);
  std::set<BrokenLink> broken;
  for (auto count = random() % 20; count > 0; --count) {
    const int observer = static_cast<int>(random() % 20);
    const int member = static_cast<int>(random() % 20);
    if (observer != member) broken.insert({observer, member});
  }
  const auto is_broken = [&](int one, int other) {
    return broken.contains({one, other}) || broken.contains({other, one});
  };
  const Members survivors = choose_survivors(members, broken);
  REQUIRE(std::is_sorted(survivors.begin(), survivors.end()));
  for (const int member : members) {
    const auto misses = std::count_if(survivors.begin(), survivors.end(),
                                      [&](int other) { return is_broken(member, other); });
    REQUIRE((misses == 0) == rueda::contains(survivors, member));
  }
}

TEST_CASE("a majority of those that have not ended goes on, or half with the lowest") {
  CHECK(has_quorum({0, 1}, {0, 1, 2}, {}));
  CHECK_FALSE(has_quorum({2}, {0, 1, 2}, {}));
  CHECK(has_quorum({0, 3}, {0, 1, 2, 3}, {}));
  CHECK_FALSE(has_quorum({1, 2}, {0, 1, 2, 3}, {}));
  CHECK(has_quorum({1, 2}, {0, 1, 2, 3}, {0}));
  CHECK(has_quorum({3}, {0, 1, 2, 3}, {0, 1, 2}));
  CHECK(has_quorum({3}, {0, 1}, {0, 1}));
  CHECK_FALSE(has_quorum({3}, {0, 1}, {0}));
}

TEST_CASE("never have two that have no member in common both a majority") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(1, 300))));
  Members members;
  Members ended;
  Members left;
  Members right;
  for (int number = 0; number < 10; ++number) {
    if (random() % 4 == 0) continue;
    members.push_back(number);
    switch (random() % 4) {
      case 0: ended.push_back(number); break;
      case 1: left.push_back(number); break;
      case 2: right.push_back(number); break;
      default: break;
    }
  }
  if (left.empty() && right.empty()) return;
  REQUIRE_FALSE((has_quorum(left, members, ended) && has_quorum(right, members, ended)));
}

}  // namespace rueda::test::survivor_choice_test
