#include "plan/leaf_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/strings.h"
#include "rueda/error.h"

namespace rueda {

namespace {

LeafNode left_of(LeafNode node) {
  const auto count = static_cast<unsigned>(node.count);
  return {node.first, static_cast<int>(std::bit_floor(count - 1))};
}

LeafNode right_of(LeafNode node) {
  const LeafNode left = left_of(node);
  return {node.first + left.count, node.count - left.count};
}

// Whether `wanted` is a node of the tree below `node`.
bool is_node(LeafNode node, LeafNode wanted) {
  if (wanted.count < 1 || wanted.first < node.first) return false;
  while (node != wanted) {
    if (wanted.count >= node.count) return false;
    const LeafNode right = right_of(node);
    node = wanted.first < right.first ? left_of(node) : right;
  }
  return true;
}

// Appends the largest nodes within `node` all of whose leaves are among the ascending ones from
// `at` on. Moves `at` behind the covered leaves.
using Leaf = std::vector<int>::const_iterator;
void cover(LeafNode node, Leaf& at, Leaf end, std::vector<LeafNode>& nodes) {
  if (at == end || *at >= node.first + node.count) return;
  const bool has_room = end - at >= node.count;
  if (*at == node.first && has_room && at[node.count - 1] == node.first + node.count - 1) {
    at += node.count;
    return nodes.push_back(node);
  }
  if (node.count == 1) return;
  cover(left_of(node), at, end, nodes);
  cover(right_of(node), at, end, nodes);
}

std::vector<LeafNode> cover(int total, const std::vector<int>& leaves) {
  std::vector<LeafNode> nodes;
  auto at = leaves.begin();
  cover({0, total}, at, leaves.end(), nodes);
  return nodes;
}

// Adds up `parts`: ascending nodes, the next of which make up `node`.
using Part = std::vector<LeafNode>::const_iterator;
void merge_into(LeafNode node, Part& part, std::vector<int>& merges) {
  if (*part == node) {
    ++part;
    return merges.push_back(0);
  }
  merge_into(left_of(node), part, merges);
  merge_into(right_of(node), part, merges);
  ++merges.back();
}

}  // namespace

std::vector<int> divide_leaves(int leaves, int ranks) {
  if (leaves < 1 || leaves > max_leaves || ranks < 1) {
    throw InvalidArgumentError(str(leaves, " leaves on ", ranks, " ranks: there must be 1 to ",
                                   max_leaves, " leaves and at least one rank"));
  }
  std::vector<int> leaf_ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const int own = leaves / ranks + (rank < leaves % ranks ? 1 : 0);
    leaf_ranks.insert(leaf_ranks.end(), static_cast<std::size_t>(own), rank);
  }
  return leaf_ranks;
}

std::vector<int> reassign_leaves(const std::vector<int>& leaf_ranks,
                                 const std::vector<int>& survivors) {
  if (survivors.empty()) throw InvalidArgumentError("nobody is left to compute the leaves");
  std::vector<int> loads(survivors.size(), 0);
  std::vector<int> assigned(leaf_ranks.size(), -1);
  for (std::size_t leaf = 0; leaf < leaf_ranks.size(); ++leaf) {
    const auto found = std::lower_bound(survivors.begin(), survivors.end(), leaf_ranks[leaf]);
    if (found == survivors.end() || *found != leaf_ranks[leaf]) continue;
    assigned[leaf] = static_cast<int>(found - survivors.begin());
    ++loads[static_cast<std::size_t>(assigned[leaf])];
  }
  for (int& rank : assigned) {
    if (rank >= 0) continue;
    const auto least = std::min_element(loads.begin(), loads.end());
    rank = static_cast<int>(least - loads.begin());
    ++*least;
  }
  return assigned;
}

std::vector<int> leaves_of(const std::vector<int>& leaf_ranks, int rank) {
  std::vector<int> leaves;
  for (std::size_t leaf = 0; leaf < leaf_ranks.size(); ++leaf) {
    if (leaf_ranks[leaf] == rank) leaves.push_back(static_cast<int>(leaf));
  }
  return leaves;
}

LeafSchedule schedule_of(int total, std::vector<int> leaves) {
  std::vector<LeafNode> parts;
  parts.reserve(leaves.size());
  for (const int leaf : leaves) parts.push_back({leaf, 1});
  return schedule_of_parts(total, parts);
}

LeafSchedule schedule_of_parts(int total, const std::vector<LeafNode>& parts) {
  LeafSchedule schedule;
  int end = 0;
  for (const LeafNode& part : parts) {
    if (part.first < end || !is_node({0, total}, part)) {
      throw InvalidArgumentError(str("the ", part.count, " leaves from leaf ", part.first,
                                     " are not a node of a tree over ", total,
                                     " leaves that follows leaf ", end - 1));
    }
    for (end = part.first; end < part.first + part.count; ++end) schedule.leaves.push_back(end);
  }
  schedule.partials = cover(total, schedule.leaves);
  auto next = parts.cbegin();
  for (const LeafNode& partial : schedule.partials) merge_into(partial, next, schedule.merges);
  return schedule;
}

LeafPlan plan_leaves(const std::vector<int>& leaf_ranks, int ranks) {
  struct Given {
    LeafNode node;
    LeafPlan::Source source;
  };
  LeafPlan plan;
  plan.leaves = static_cast<int>(leaf_ranks.size());
  std::vector<Given> given;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<LeafNode> nodes = cover(plan.leaves, leaves_of(leaf_ranks, rank));
    plan.partials.push_back(static_cast<int>(nodes.size()));
    for (int number = 0; number < plan.partials.back(); ++number) {
      given.push_back({nodes[static_cast<std::size_t>(number)], {rank, number}});
    }
  }
  std::sort(given.begin(), given.end(), [](const Given& left, const Given& right) {
    return left.node.first < right.node.first;
  });
  std::vector<LeafNode> nodes;
  for (const Given& each : given) {
    nodes.push_back(each.node);
    plan.sources.push_back(each.source);
  }
  auto next = nodes.cbegin();
  merge_into({0, plan.leaves}, next, plan.merges);
  return plan;
}

std::vector<std::size_t> LeafPlan::places() const {
  std::vector<std::size_t> before;  // by rank, the number of partial sums of earlier ranks
  std::size_t all = 0;
  for (const int own : partials) {
    before.push_back(all);
    all += static_cast<std::size_t>(own);
  }
  std::vector<std::size_t> places;
  for (const Source& source : sources) {
    places.push_back(before[static_cast<std::size_t>(source.rank)] +
                     static_cast<std::size_t>(source.number));
  }
  return places;
}

}  // namespace rueda
