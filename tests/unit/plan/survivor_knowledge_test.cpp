// What a member of a broken epoch concludes from its own and others' findings.
#include "plan/survivor_knowledge.h"

#include <catch2/catch.hpp>

#include "plan/signs_of_life.h"

namespace rueda::test::survivor_knowledge_test {

namespace {

using Ranks = std::vector<int>;

Status closed(int member) {
  return Status(ErrorCode::peer_lost, "closed", member);
}

}  // namespace

TEST_CASE("who knows the same comes to the same outcome, whoever told whom") {
  SurvivorKnowledge first(0, {0, 1, 2, 3}, 5);
  SurvivorKnowledge second(1, {0, 1, 2, 3}, 5);
  first.add_ended(3, closed(3));
  second.add_unreachable(2, closed(2));
  const SurvivorView before = first.view();
  first.merge(second.view(), false);
  second.merge(before, false);
  REQUIRE(first.outcome() == second.outcome());
  REQUIRE(first.outcome().ended == Ranks{3});
  REQUIRE(first.outcome().survivors == Ranks{0, 1});
  REQUIRE(first.lost({0, 1, 2, 3}, {0, 1}).size() == 2);
}

TEST_CASE("that a member was silent is known to those that have waited for it") {
  const Status silent(ErrorCode::peer_lost, "silent", 2, {.reason = ErrorReason::unreachable});
  SurvivorKnowledge first(0, {0, 1, 2, 3}, 5);
  SurvivorKnowledge second(1, {0, 1, 2, 3}, 5);
  first.add_unreachable(2, closed(2));
  second.add_unreachable(2, silent);
  second.add_unreachable(3, silent);
  second.add_ended(3, closed(3));
  first.merge(second.view(), false);
  second.merge(first.view(), false);
  const auto reasons = [](const SurvivorKnowledge& knowledge) {
    std::vector<ErrorReason> found;
    for (const auto& [member, cause] : knowledge.lost({0, 1, 2, 3}, {0, 1})) {
      found.push_back(cause.details().reason);
    }
    return found;
  };
  using enum ErrorReason;
  REQUIRE(reasons(first) == std::vector{unspecified, unspecified});
  REQUIRE(reasons(second) == std::vector{unreachable, unspecified});
}

TEST_CASE("who reaches whom is told by ranks in the world that broke, not by process numbers") {
  SurvivorKnowledge own(6, {2, 5, 6}, 5);
  REQUIRE(own.rank_of(2) == 0);
  REQUIRE(own.rank_of(3) == -1);
  REQUIRE(own.ranks_of({2, 3, 6}) == Ranks{0, 2});
  SurvivorKnowledge other(5, {2, 5, 6}, 5);
  other.add_unreachable(6, closed(2));
  own.merge(other.view(), false);
  const Status cause = own.cause_of(5, {2, 6});
  REQUIRE(cause.to_string() == "rank 1 cannot reach rank 2: closed");
  REQUIRE(cause.peer() == 1);
}

TEST_CASE("who does not reach this process is not reached by it, unless this one was stopped") {
  SurvivorKnowledge other(1, {0, 1}, 5);
  other.add_unreachable(0, closed(0));
  SurvivorKnowledge stopped(0, {0, 1}, 5);
  stopped.merge(other.view(), true);
  REQUIRE(stopped.reaches(1));
  SurvivorKnowledge own(0, {0, 1}, 5);
  own.merge(other.view(), false);
  REQUIRE_FALSE(own.reaches_any_of({1}));
}

TEST_CASE("a world that was given up counts until a member of it can no longer decide on it") {
  SurvivorKnowledge own(0, {0, 1, 2}, 5);
  own.give_up({0, 1}, 6);
  REQUIRE(*own.find_given_up(6) == Ranks{0, 1});
  REQUIRE(own.outcome().given_up == std::vector<Ranks>{{0, 1}});
  SurvivorKnowledge other(1, {0, 1, 2}, 5);
  other.propose(7);
  own.merge(other.view(), false);
  REQUIRE(own.outcome().given_up.empty());
}

TEST_CASE("after an epoch that others formed, what was lost before has its cause still") {
  SurvivorKnowledge own(0, {0, 1, 2}, 5);
  own.add_ended(2, closed(2));
  own.add_unreachable(1, closed(1));
  own.continue_from({6, {0, 1}, {}}, {0});
  REQUIRE(own.epoch() == 6);
  REQUIRE(own.members() == Ranks{0, 1});
  REQUIRE(own.reaches(1));
  REQUIRE(own.cause_of(2, {0, 1}).message() == "closed");
  SurvivorKnowledge of_before(1, {0, 1, 2}, 6);
  of_before.add_ended(2, closed(2));
  REQUIRE_FALSE(own.is_plausible(of_before.view()));
}

TEST_CASE("who was stopped has measured nobody's silence") {
  SignsOfLife signs(seconds(1), Time{});
  signs.begin(1, Time{});
  signs.give(Time{});
  REQUIRE_FALSE(signs.notice_call(signs.next_beat()));
  REQUIRE(signs.silence_end(1) == Time{} + seconds(1));
  const Time later = signs.last_call() + seconds(2);
  REQUIRE(signs.notice_call(later));
  REQUIRE(signs.silence_end(1) == later + seconds(1));
}

}  // namespace rueda::test::survivor_knowledge_test
