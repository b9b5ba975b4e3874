// Pieces of work that members claim: each is done once, at any speed of the members.
#include "onehost/work_claims.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "ranks/rank_threads.h"

namespace rueda::test::work_claims_test {

TEST_CASE("every piece of one work after the other is claimed once, in any order of members") {
  std::mt19937 random(GENERATE(range(0U, 30U)));
  const int members = std::uniform_int_distribution(1, 6)(random);
  std::atomic<std::uint64_t> counter{0};
  std::vector<WorkClaims> claims(static_cast<std::size_t>(members), WorkClaims(members));
  for (int work = 0; work < 20; ++work) {
    const auto pieces = std::uniform_int_distribution<std::uint64_t>(0, 12)(random);
    for (WorkClaims& each : claims) each.begin(counter, pieces);
    std::vector<int> done(pieces, 0);
    std::vector<std::size_t> busy(claims.size());
    for (std::size_t i = 0; i < busy.size(); ++i) busy[i] = i;
    while (!busy.empty()) {
      const auto next = std::uniform_int_distribution<std::size_t>(0, busy.size() - 1)(random);
      if (const auto piece = claims[busy[next]].claim()) {
        ++done.at(*piece);
      } else {
        busy.erase(busy.begin() + static_cast<std::ptrdiff_t>(next));
      }
    }
    REQUIRE(done == std::vector<int>(pieces, 1));
  }
}

TEST_CASE("threads that claim at one time get different pieces") {
  constexpr int members = 4;
  constexpr std::uint64_t pieces = 1000;
  std::atomic<std::uint64_t> counter{0};
  std::vector<std::atomic<int>> done(pieces);
  run_ranks(members, [&](int) {
    WorkClaims claims(members);
    claims.begin(counter, pieces);
    while (const auto piece = claims.claim()) ++done[*piece];
  });
  for (const std::atomic<int>& each : done) REQUIRE(each == 1);
  CHECK(counter == pieces + members);
}

}  // namespace rueda::test::work_claims_test
