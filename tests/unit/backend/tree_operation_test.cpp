// Tree allreduces over a transport that completes everything late and out of order.
#include "backend/tree_operation.h"

#include <catch2/catch.hpp>
#include <memory>

#include "ranks/late_allreduce.h"

namespace rueda::test::tree_operation_test {

namespace {

using TreeRanks = LateAllreduce<TreeOperation>;

TreeRanks ranks_of(Network& network, int tree, std::int64_t count, std::int64_t chunk,
                   const Reduction& reduction) {
  return {network, count, thousands_and_index, [&](const Lane& lane, std::byte* data) {
            return std::make_unique<TreeOperation>(lane, tree, reduction, data, count, chunk);
          }};
}

void check_sums(const TreeRanks& ranks, int size) {
  for (int rank = 0; rank < size; ++rank) {
    REQUIRE(ranks.operation(rank).done());
    REQUIRE(ranks.operation(rank).status().ok());
    REQUIRE(ranks.operation(rank).awaited().empty());
    for (std::size_t i = 0; i < ranks.data(rank).size(); ++i) {
      const double sum = 500.0 * size * (size + 1) + static_cast<double>(i) * size;
      REQUIRE(ranks.data(rank)[i] == sum);
    }
  }
}

}  // namespace

TEST_CASE("a tree is right, and touches no memory that is on its way, whatever comes late") {
  const unsigned eagerness = GENERATE(0U, 3U, 10U);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const int size = 2 + static_cast<int>(seed % 8);
    Network network(size, seed);
    const auto count = static_cast<std::int64_t>(network.random()() % 60);
    const auto chunk = static_cast<std::int64_t>(1 + network.random()() % 12);
    CAPTURE(eagerness, seed, size, count, chunk);
    TreeRanks ranks =
        ranks_of(network, static_cast<int>(network.random()() % 2), count, chunk, sum_of_doubles());
    ranks.run(eagerness);
    check_sums(ranks, size);
  }
}

TEST_CASE("a tree takes memory for what there is, however large its chunks may be") {
  Network network(5, 0);
  TreeRanks ranks = ranks_of(network, 1, 10, std::int64_t{1} << 48, sum_of_doubles());
  ranks.run(5);
  check_sums(ranks, 5);
}

TEST_CASE("a receive or a send that fails is the tree's failure on that rank") {
  // 4 ranks with 6 chunks: 3 links, both directions.
  check_failing_transfers(GENERATE(true, false), 4, 6 * 6, [](Network& network, int failing) {
    return ranks_of(network, failing % 2, 6, 1, sum_of_doubles());
  });
}

TEST_CASE("who waits along a tree names the neighbours from which nothing comes") {
  SECTION("in the first tree rank 1 has children 0 and 2, and no parent") {
    const int absent = GENERATE(0, 2);
    Network network(3, 0);
    TreeRanks ranks = ranks_of(network, 0, 20, 1, sum_of_doubles());
    ranks.run_without(absent);
    CHECK(ranks.operation(1).awaited() == std::vector<int>{absent});
    CHECK(ranks.operation(2 - absent).awaited() == std::vector<int>{1});
  }
  // Rank 2 combines rank 1's chunks after rank 3's; rank 1's have arrived, so only rank 3 is named.
  SECTION("in the second tree rank 2 has children 3 and 1, in this order") {
    Network network(4, 0);
    TreeRanks ranks = ranks_of(network, 1, 20, 1, sum_of_doubles());
    ranks.run_without(3);
    CHECK(ranks.operation(2).awaited() == std::vector<int>{3});
  }
}

}  // namespace rueda::test::tree_operation_test
