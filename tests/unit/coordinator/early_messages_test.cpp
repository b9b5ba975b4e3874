// Messages that are kept for sets that a rank does not know yet.
#include "coordinator/early_messages.h"

#include <catch2/catch.hpp>
#include <vector>

#include "plan/set_slots.h"

namespace rueda::test::early_messages_test {

namespace {

std::vector<std::byte> of(std::size_t bytes, int content = 0) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(content));
}

constexpr auto cost = EarlyMessages::cost_of;

}  // namespace

TEST_CASE("what comes early is there once, in order") {
  EarlyMessages early;
  CHECK(early.keep(7, 1, of(3, 1)) == 0);
  CHECK(early.keep(first_formed, 0, of(1)) == 0);
  CHECK(early.keep(7, 0, of(2, 2)) == 0);
  CHECK(early.bytes() == cost(3) + cost(1) + cost(2));
  const auto kept = early.take(7);
  REQUIRE(kept.messages.size() == 2);
  CHECK(kept.messages[0].peer == 1);
  CHECK(kept.messages[0].payload == of(3, 1));
  CHECK(kept.messages[1].peer == 0);
  CHECK_FALSE(kept.is_overfull);
  CHECK(early.take(7).messages.empty());
  CHECK(early.bytes() == cost(1));
}

TEST_CASE("of more sets than there can be the latest are kept") {
  EarlyMessages early;
  const auto sets = static_cast<int>(EarlyMessages::max_sets);
  for (int set = 1; set <= sets; ++set) REQUIRE(early.keep(set, 0, of(1)) == 0);
  CHECK(early.keep(1, 0, of(1)) == 0);  // this set is already kept
  CHECK(early.keep(sets + 1, 0, of(1)) == 2);
  CHECK(early.keep(sets + 2, 0, of(1)) == 1);
  CHECK(early.sets() == EarlyMessages::max_sets);
  CHECK(early.bytes() == EarlyMessages::max_sets * cost(1));
  CHECK(early.take(1).messages.empty());
  CHECK(early.take(3).messages.size() == 1);
  CHECK(early.take(sets + 2).messages.size() == 1);
}

TEST_CASE("of a set that had to make room it is known that something was said") {
  EarlyMessages early;
  const auto sets = static_cast<int>(EarlyMessages::max_sets);
  const auto evicted = static_cast<int>(EarlyMessages::max_evicted);
  for (int set = 1; set <= sets; ++set) REQUIRE(early.keep(set, 0, of(1)) == 0);
  CHECK(early.keep(sets + 1, 0, of(1)) == 1);
  CHECK(early.keep(1, 0, of(1)) == 1);  // not kept again: its first message is lost
  CHECK(early.sets() == EarlyMessages::max_sets);
  const auto kept = early.take(1);
  CHECK(kept.is_overfull);
  CHECK(kept.messages.empty());
  CHECK_FALSE(early.take(1).is_overfull);  // reported once
  CHECK_FALSE(early.take(sets + 1).is_overfull);
  // Only the latest evicted sets are remembered.
  REQUIRE(early.keep(sets + 1, 0, of(1)) == 0);
  for (int set = 2; set <= evicted + 2; ++set) early.keep(sets + set, 0, of(1));
  CHECK_FALSE(early.take(2).is_overfull);
  CHECK(early.take(evicted + 2).is_overfull);
}

TEST_CASE("small messages count with all the memory that they take") {
  EarlyMessages early;
  std::size_t messages = 0;
  while (early.keep(5, 0, of(10)) == 0) ++messages;
  CHECK(messages * (10 + sizeof(EarlyMessages::Message)) < EarlyMessages::max_bytes / 2);
  CHECK(early.take(5).is_overfull);
}

TEST_CASE("a set in which too much is said is known to be so, and leaves the others alone") {
  EarlyMessages early;
  const auto large = of(EarlyMessages::max_bytes / 4);
  for (int round = 0; round < 3; ++round) REQUIRE(early.keep(5, 0, large) == 0);
  REQUIRE(early.keep(6, 1, of(1)) == 0);
  CHECK(early.keep(9, 1, large) == 3);  // drops the largest set, not this one
  CHECK(early.keep(5, 0, of(1)) == 1);  // set 5 is no longer kept
  CHECK(early.bytes() == cost(large.size()) + cost(1));
  CHECK(early.take(6).messages.size() == 1);
  CHECK(early.take(9).messages.size() == 1);
  const auto kept = early.take(5);
  CHECK(kept.is_overfull);
  CHECK(kept.messages.empty());
  CHECK(early.bytes() == 0);
  CHECK(early.keep(5, 0, of(1)) == 0);
}

}  // namespace rueda::test::early_messages_test
