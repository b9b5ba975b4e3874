// Which submissions in flight an error has already answered.
#include "plan/crossing_errors.h"

#include <catch2/catch.hpp>

namespace rueda::test::crossing_errors_test {

namespace {

Response error_of(const std::string& name, const std::string& group = "") {
  Response error;
  error.kind = ResponseKind::error;
  error.request.name = name;
  error.request.group = group;
  error.status = Status(ErrorCode::stalled, name);
  return error;
}

Announcement announcement_of(const std::string& name, const std::string& group = "") {
  Announcement announcement;
  announcement.variants.emplace_back().request = error_of(name, group).request;
  return announcement;
}

}  // namespace

TEST_CASE("an error answers what a child sent before it had applied it, and nothing after") {
  CrossingErrors errors(true);
  const std::vector<int> children{1, 2};
  for (const int child : children) errors.note_applied(child, 0, children);
  errors.begin_list();
  errors.note(error_of("x", "group"));
  REQUIRE(errors.was_answered(1, announcement_of("x")));
  REQUIRE(errors.was_answered(1, announcement_of("y", "group")));
  // A group with the name of a tensor is distinct from it.
  REQUIRE_FALSE(errors.was_answered(1, announcement_of("y", "x")));
  errors.note_applied(1, errors.applied(), children);
  REQUIRE_FALSE(errors.was_answered(1, announcement_of("x")));
  REQUIRE(errors.was_answered(2, announcement_of("x")));
}

TEST_CASE("errors are kept only until all children have applied them") {
  const std::vector<int> children{1, 2};
  CrossingErrors errors(true);
  CrossingErrors of_a_leaf(false);
  for (int list = 0; list < 100; ++list) {
    for (CrossingErrors* each : {&errors, &of_a_leaf}) {
      each->begin_list();
      each->note(error_of("x" + std::to_string(list), "group" + std::to_string(list)));
    }
  }
  REQUIRE(of_a_leaf.kept() == 0);
  REQUIRE(errors.kept() == 200);
  for (const int child : children) errors.note_applied(child, 99, children);
  REQUIRE(errors.kept() == 2);
}

TEST_CASE("what a rank has missed it is told once") {
  CrossingErrors errors(false);
  errors.miss(error_of("x", "group"));
  const auto take = [&](const std::string& name, const std::string& group = "") {
    const Request request = error_of(name, group).request;
    return errors.take_missed({&request, 1});
  };
  REQUIRE(take("y").ok());
  REQUIRE(take("x").code() == ErrorCode::stalled);
  REQUIRE(take("x").ok());
  REQUIRE(take("y", "group").code() == ErrorCode::stalled);
  errors.miss(error_of("x"));
  errors.forget_missed();
  REQUIRE(take("x").ok());
}

}  // namespace rueda::test::crossing_errors_test
