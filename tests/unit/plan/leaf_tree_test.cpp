// The leaf tree as data: the sums do not depend on which rank computes which leaf.
#include "plan/leaf_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "rueda/error.h"

namespace rueda::test::leaf_tree_test {

namespace {

// Adds strings, so that the result shows the order of the additions.
std::vector<std::string> add_up(const std::vector<std::string>& inputs,
                                const std::vector<int>& merges) {
  std::vector<std::string> stack;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    stack.push_back(inputs[i]);
    for (int left = merges[i]; left > 0; --left) {
      REQUIRE(stack.size() >= 2);
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = "(" + stack.back() + "+" + right + ")";
    }
  }
  return stack;
}

// The partial sums that a rank contributes.
std::vector<std::string> partials_of(const std::vector<int>& leaf_ranks, int rank) {
  const int total = static_cast<int>(leaf_ranks.size());
  const LeafSchedule schedule = schedule_of(total, leaves_of(leaf_ranks, rank));
  std::vector<std::string> leaves;
  for (const int leaf : schedule.leaves) leaves.push_back(std::to_string(leaf));
  std::vector<std::string> partials = add_up(leaves, schedule.merges);
  REQUIRE(partials.size() == schedule.partials.size());
  return partials;
}

std::string root_of(const std::vector<int>& leaf_ranks, int ranks) {
  const LeafPlan plan = plan_leaves(leaf_ranks, ranks);
  std::vector<std::vector<std::string>> partials;
  for (int rank = 0; rank < ranks; ++rank) {
    partials.push_back(partials_of(leaf_ranks, rank));
    REQUIRE(static_cast<int>(partials.back().size()) == plan.partials_of(rank));
  }
  std::vector<std::string> inputs;
  for (const LeafPlan::Source& source : plan.sources) {
    inputs.push_back(partials.at(static_cast<std::size_t>(source.rank))
                         .at(static_cast<std::size_t>(source.number)));
  }
  const std::vector<std::string> root = add_up(inputs, plan.merges);
  REQUIRE(root.size() == 1);
  return root.front();
}

}  // namespace

TEST_CASE("the tree is a fixed one") {
  CHECK(root_of({0}, 1) == "0");
  CHECK(root_of({0, 0, 0}, 1) == "((0+1)+2)");
  CHECK(root_of({0, 0, 0, 0, 0, 0}, 1) == "(((0+1)+(2+3))+(4+5))");
  CHECK(root_of(divide_leaves(8, 1), 1) == "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST_CASE("the root does not depend on how many ranks there are") {
  const int leaves = GENERATE(range(1, 40));
  const std::string expected = root_of(divide_leaves(leaves, 1), 1);
  for (int ranks = 2; ranks <= 17; ++ranks) {
    CHECK(root_of(divide_leaves(leaves, ranks), ranks) == expected);
  }
}

TEST_CASE("the root does not depend on who computes which leaf") {
  std::mt19937 random(GENERATE(range(0U, 50U)));
  const int leaves = std::uniform_int_distribution(1, 70)(random);
  const int ranks = std::uniform_int_distribution(1, 12)(random);
  std::vector<int> leaf_ranks;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    leaf_ranks.push_back(std::uniform_int_distribution(0, ranks - 1)(random));
  }
  CHECK(root_of(leaf_ranks, ranks) == root_of(divide_leaves(leaves, 1), 1));
}

TEST_CASE("sources are found among the partial sums of all ranks") {
  std::mt19937 random(GENERATE(range(0U, 20U)));
  const int ranks = std::uniform_int_distribution(1, 8)(random);
  std::vector<int> leaf_ranks(std::uniform_int_distribution<std::size_t>(1, 50)(random));
  for (int& rank : leaf_ranks) rank = std::uniform_int_distribution(0, ranks - 1)(random);
  const LeafPlan plan = plan_leaves(leaf_ranks, ranks);
  std::vector<LeafPlan::Source> by_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int number = 0; number < plan.partials_of(rank); ++number) {
      by_rank.push_back({rank, number});
    }
  }
  std::vector<LeafPlan::Source> found;
  for (const std::size_t place : plan.places()) found.push_back(by_rank.at(place));
  CHECK(found == plan.sources);
}

TEST_CASE("leaves are divided into ranges that are as even as possible") {
  CHECK(divide_leaves(8, 3) == std::vector{0, 0, 0, 1, 1, 1, 2, 2});
  CHECK(divide_leaves(2, 3) == std::vector{0, 1});
  const int leaves = GENERATE(1, 2, 7, 8, 64, 100);
  for (int ranks = 1; ranks <= 20; ++ranks) {
    const std::vector<int> leaf_ranks = divide_leaves(leaves, ranks);
    REQUIRE(static_cast<int>(leaf_ranks.size()) == leaves);
    CHECK(std::is_sorted(leaf_ranks.begin(), leaf_ranks.end()));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = std::count(leaf_ranks.begin(), leaf_ranks.end(), rank);
      CHECK((own == leaves / ranks || own == leaves / ranks + 1));
    }
  }
}

TEST_CASE("a rank has one partial sum where it has a power of two of leaves") {
  for (int leaves = 1; leaves <= 256; leaves *= 2) {
    for (int ranks = 1; ranks <= leaves; ranks *= 2) {
      const LeafPlan plan = plan_leaves(divide_leaves(leaves, ranks), ranks);
      CHECK(plan.partials == std::vector<int>(static_cast<std::size_t>(ranks), 1));
    }
  }
  CHECK(plan_leaves(divide_leaves(12, 3), 3).partials == std::vector{1, 1, 1});
  CHECK(plan_leaves(divide_leaves(8, 3), 3).partials == std::vector{2, 2, 1});
}

TEST_CASE("a range of n leaves has at most 2 log2(n) partial sums") {
  const int leaves = GENERATE(8, 13, 64, 100);
  for (int first = 0; first < leaves; ++first) {
    for (int count = 1; first + count <= leaves; ++count) {
      std::vector<int> range(static_cast<std::size_t>(count));
      std::iota(range.begin(), range.end(), first);
      const LeafSchedule schedule = schedule_of(leaves, range);
      int log2 = 0;
      while ((1 << log2) < count) ++log2;
      CHECK(static_cast<int>(schedule.partials.size()) <= std::max(1, 2 * log2));
      int covered = first;
      for (const LeafNode& node : schedule.partials) {
        CHECK(node.first == covered);
        covered += node.count;
      }
      CHECK(covered == first + count);
    }
  }
}

TEST_CASE("only the leaves of the lost are computed again") {
  CHECK(reassign_leaves({0, 0, 1, 1, 2, 2, 3, 3}, {0, 1, 3}) ==
        std::vector{0, 0, 1, 1, 0, 1, 2, 2});
  const int ranks = GENERATE(2, 3, 4, 8);
  const std::vector<int> before = divide_leaves(16, ranks);
  for (int lost = 0; lost < ranks; ++lost) {
    std::vector<int> survivors;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != lost) survivors.push_back(rank);
    }
    const std::vector<int> after = reassign_leaves(before, survivors);
    std::vector<int> loads(survivors.size(), 0);
    for (std::size_t leaf = 0; leaf < before.size(); ++leaf) {
      const auto owner = static_cast<std::size_t>(after[leaf]);
      ++loads.at(owner);
      if (before[leaf] != lost) CHECK(survivors.at(owner) == before[leaf]);
    }
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    CHECK(*most - *least <= 1);
    CHECK(root_of(after, ranks - 1) == root_of(divide_leaves(16, 1), 1));
  }
}

TEST_CASE("sums kept from an interrupted step become the same partial sums") {
  const int total = GENERATE(1, 2, 7, 8, 13, 32);
  std::mt19937 random(static_cast<unsigned>(total));
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::vector<int> own;  // the first `kept` were computed earlier
    for (int leaf = 0; leaf < total; ++leaf) {
      if (random() % 4 != 0) own.push_back(leaf);
    }
    const auto kept = static_cast<std::ptrdiff_t>(random() % (own.size() + 1));
    const LeafSchedule before = schedule_of(total, {own.begin(), own.begin() + kept});
    std::vector<LeafNode> parts = before.partials;
    for (auto leaf = own.begin() + kept; leaf != own.end(); ++leaf) parts.push_back({*leaf, 1});
    const LeafSchedule after = schedule_of_parts(total, parts);
    CHECK(after.leaves == own);
    CHECK(after.partials == schedule_of(total, own).partials);
    const auto named = [](const std::vector<int>& leaves) {
      std::vector<std::string> names;
      for (const int leaf : leaves) names.push_back(std::to_string(leaf));
      return names;
    };
    std::vector<std::string> inputs = add_up(named(before.leaves), before.merges);
    for (const std::string& leaf : named({own.begin() + kept, own.end()})) inputs.push_back(leaf);
    CHECK(add_up(inputs, after.merges) == add_up(named(own), schedule_of(total, own).merges));
  }
}

TEST_CASE("parts that are not nodes of the tree are an error") {
  using Parts = std::vector<LeafNode>;
  const auto parts = GENERATE(Parts{{1, 2}}, Parts{{0, 4}, {3, 1}}, Parts{{2, 1}, {0, 1}},
                              Parts{{0, 16}}, Parts{{-1, 1}}, Parts{{3, 0}}, Parts{{8, 1}});
  CHECK_THROWS_AS(schedule_of_parts(8, parts), InvalidArgumentError);
}

TEST_CASE("leaves that cannot be divided are an error") {
  CHECK_THROWS_AS(divide_leaves(0, 1), InvalidArgumentError);
  CHECK_THROWS_AS(divide_leaves(1, 0), InvalidArgumentError);
  CHECK_THROWS_AS(divide_leaves(max_leaves + 1, 1), InvalidArgumentError);
  CHECK_THROWS_AS(reassign_leaves({0}, {}), InvalidArgumentError);
}

}  // namespace rueda::test::leaf_tree_test
