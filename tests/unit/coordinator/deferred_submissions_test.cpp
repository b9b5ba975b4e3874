// Submissions that wait for a name.
#include "coordinator/deferred_submissions.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "core/strings.h"

namespace rueda::test::deferred_submissions_test {

namespace {

DeferredSubmissions::Group group_of(const std::string& name) {
  DeferredSubmissions::Group group(1);
  group.front().request.name = name;
  return group;
}

}  // namespace

TEST_CASE("what waits for a name comes in its order, and nothing is lost") {
  std::mt19937 random(GENERATE(range(0U, 50U)));
  DeferredSubmissions deferred;
  std::map<std::string, std::vector<std::string>> expected;  // by the name that they wait for
  for (int i = 0; i < 30; ++i) {
    const std::string waits_for = str("n", random() % 5);
    if (random() % 4 == 0) {
      std::vector<std::string> taken;
      auto& first = expected[waits_for];
      if (!first.empty() && random() % 2 == 0) {
        CHECK(deferred.take_first(waits_for)[0].request.name == first.front());
        first.erase(first.begin());
        CHECK(deferred.contains(waits_for) == !first.empty());
        continue;
      }
      for (const auto& group : deferred.take(waits_for)) taken.push_back(group[0].request.name);
      CHECK(taken == first);
      expected.erase(waits_for);
      continue;
    }
    deferred.add(waits_for, group_of(str("t", i)));
    expected[waits_for].push_back(str("t", i));
    CHECK(deferred.contains(waits_for));
  }
  std::size_t left = 0;
  for (const auto& [name, groups] : expected) left += groups.size();
  auto names = deferred.names([](const std::string& name) { return name != "n0"; });
  std::sort(names.begin(), names.end());
  std::vector<std::string> waited_for;
  for (const auto& [name, groups] : expected) {
    if (name != "n0" && !groups.empty()) waited_for.push_back(name);
  }
  CHECK(names == waited_for);
  CHECK(deferred.take_all().size() == left);
  CHECK(deferred.empty());
}

}  // namespace rueda::test::deferred_submissions_test
