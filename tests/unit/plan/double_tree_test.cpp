// Double trees as data: the trees complement each other, and data sent along them arrives.
#include "plan/double_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "plan/link_costs.h"
#include "plan/tree_progress.h"

namespace rueda::test::double_tree_test {

namespace {

std::vector<TreePlace> tree_of(int tree, int size) {
  std::vector<TreePlace> places;
  for (int rank = 0; rank < size; ++rank) places.push_back(place_in_tree(tree, rank, size));
  return places;
}

// Hops up to the root; fails if there is no root.
int hops_to_root(const std::vector<TreePlace>& tree, int rank) {
  int hops = 0;
  for (; !tree[static_cast<std::size_t>(rank)].is_root(); ++hops) {
    REQUIRE(hops < static_cast<int>(tree.size()));
    rank = tree[static_cast<std::size_t>(rank)].parent;
  }
  return hops;
}

// All ranks walk a tree, in any order that the arrival of messages allows.
class Walk {
 public:
  Walk(int tree, int size, std::int64_t chunks, unsigned seed) : chunks_(chunks), random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      const TreePlace place = place_in_tree(tree, rank, size);
      Node& node = nodes_.emplace_back(Node{place, TreeProgress(place, chunks), {}});
      node.held.assign(static_cast<std::size_t>(chunks), Block{{rank}, 0});
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<std::size_t> order(nodes_.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t rank : order) moved = advance(static_cast<int>(rank)) || moved;
    }
  }

  // Every rank has the sum of all ranks, with none missing or counted twice.
  void check() const {
    const int size = static_cast<int>(nodes_.size());
    for (const Node& node : nodes_) {
      REQUIRE(node.progress.is_over());
      for (const Block& block : node.held) {
        REQUIRE(static_cast<int>(block.parts.size()) == size);
        REQUIRE(static_cast<int>(std::set(block.parts.begin(), block.parts.end()).size()) == size);
        REQUIRE(block.parts == nodes_.front().held.front().parts);  // in one and the same order
        REQUIRE(block.messages <= 2 * tree_depth(size));
      }
    }
    REQUIRE(messages_ == 2 * (size - 1) * chunks_);
  }

 private:
  struct Block {
    std::vector<int> parts;  // contributing ranks, in the order of combining
    int messages = 0;        // length of the chain of messages that led here
  };
  struct Node {
    TreePlace place;
    TreeProgress progress;
    std::vector<Block> held;
  };

  Block& held(int rank, std::int64_t chunk) {
    return nodes_[static_cast<std::size_t>(rank)].held[static_cast<std::size_t>(chunk)];
  }
  void send(int from, int to, TreeProgress::Flow& flow) {
    links_[{from, to}].push_back(held(from, flow.posted()));
    flow.post();
    flow.finish();
    ++messages_;
  }
  // Null if nothing has arrived.
  Block* arrived(int from, int to) {
    auto& link = links_[{from, to}];
    return link.empty() ? nullptr : &link.front();
  }

  bool advance(int rank) {
    Node& node = nodes_[static_cast<std::size_t>(rank)];
    TreeProgress& progress = node.progress;
    bool moved = false;
    for (std::size_t child = 0; child < node.place.children.size(); ++child) {
      const int from = node.place.children[child];
      TreeProgress::Flow& flow = progress.from_child(child);
      if (progress.may_receive_from_child(child)) flow.post();
      if (const Block* block = arrived(from, rank);
          block != nullptr && flow.over() < flow.posted() && progress.may_combine(child)) {
        Block& own = held(rank, flow.over());
        own.parts.insert(own.parts.end(), block->parts.begin(), block->parts.end());
        own.messages = std::max(own.messages, block->messages + 1);
        links_[{from, rank}].pop_front();
        flow.finish();
        moved = true;
      }
      if (progress.may_send_to_child(child)) {
        send(rank, from, progress.to_child(child));
        moved = true;
      }
    }
    if (progress.may_send_to_parent()) {
      send(rank, node.place.parent, progress.to_parent());
      moved = true;
    }
    TreeProgress::Flow& result = progress.from_parent();
    if (progress.may_receive_from_parent()) result.post();
    if (const Block* block = arrived(node.place.parent, rank);
        block != nullptr && result.over() < result.posted()) {
      Block& own = held(rank, result.over());
      own = *block;
      ++own.messages;
      links_[{node.place.parent, rank}].pop_front();
      result.finish();
      moved = true;
    }
    return moved;
  }

  const std::int64_t chunks_;
  std::mt19937 random_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, int>, std::deque<Block>> links_;
  std::int64_t messages_ = 0;
};

}  // namespace

TEST_CASE("each tree reaches all ranks in log2 hops, and no rank is an inner node in both") {
  for (int size = 1; size <= 300; ++size) {
    CAPTURE(size);
    std::vector<int> trees_as_inner(static_cast<std::size_t>(size));
    for (const int number : {0, 1}) {
      const auto tree = tree_of(number, size);
      int roots = 0;
      for (int rank = 0; rank < size; ++rank) {
        const TreePlace& place = tree[static_cast<std::size_t>(rank)];
        roots += place.is_root() ? 1 : 0;
        REQUIRE(place.children.size() <= 2);
        REQUIRE(hops_to_root(tree, rank) <= tree_depth(size));
        if (!place.children.empty()) ++trees_as_inner[static_cast<std::size_t>(rank)];
        for (const int child : place.children) {
          REQUIRE(tree[static_cast<std::size_t>(child)].parent == rank);
        }
        if (place.is_root()) continue;
        const auto& siblings = tree[static_cast<std::size_t>(place.parent)].children;
        REQUIRE(std::count(siblings.begin(), siblings.end(), rank) == 1);
      }
      REQUIRE(roots == 1);
    }
    REQUIRE(*std::max_element(trees_as_inner.begin(), trees_as_inner.end()) <= 1);
  }
}

TEST_CASE("each block is combined once for each rank and reaches all in 2 log2 messages") {
  const int size = GENERATE(1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 33, 100);
  const int tree = GENERATE(0, 1);
  const std::int64_t chunks = GENERATE(1, 2, TreeProgress::window, 11);
  Walk walk(tree, size, chunks, static_cast<unsigned>(size));
  walk.run();
  walk.check();
}

TEST_CASE("trees are taken where there are many hosts, between doubling and rings") {
  LinkCosts gigabit{50'000, 8, true};
  gigabit.per_message = 5'000;
  CHECK(algorithms_across(gigabit, 8, true).to_string() ==
        "doubling:0-32K;halving:32K-512K;hierarchical:512K-");
  CHECK(algorithms_across(gigabit, 7, true).to_string() ==
        "doubling:0-16K;tree:16K-64K;hierarchical:64K-");
  const AlgorithmTable many = algorithms_across(gigabit, 60, true);
  CHECK(many.choose(1 << 10) == Algorithm::doubling);
  CHECK(many.choose(64 << 10) == Algorithm::tree);
  CHECK(many.choose(512 << 10) == Algorithm::tree);
  CHECK(many.choose(1 << 20) == Algorithm::hierarchical);
  // Up to 4 KiB, data is sent along with the hosts' agreement, which uses doubling.
  CHECK(algorithms_across({}, 3, true).choose(4 << 10) == Algorithm::doubling);
  CHECK(many.choose(4 << 10) == Algorithm::doubling);
  // Halving needs no more bytes than a ring if the number of hosts is a power of two.
  CHECK(algorithms_across(gigabit, 64, true).choose(64 << 10) == Algorithm::halving);
  CHECK(algorithms_across(gigabit, 64, true).choose(512 << 10) == Algorithm::tree);
  // The chunk size of least cost.
  const std::int64_t chunk = tree_chunk(gigabit, 64, 64 << 10);
  CHECK(chunk == 2612);  // sqrt(64 Ki * 5000 / (6 * 8))
  const double first = 12 * (50'000 + 8 * 2612);
  const double others = 2 * (64 << 10) * (8 + 5000.0 / 2612);
  CHECK(tree_cost(gigabit, 64, 64 << 10) == Approx(first + others));
  gigabit.per_message = 0;
  CHECK(tree_chunk(gigabit, 64, 64 << 10) == 1024);
  gigabit.per_byte = 0;
  CHECK(tree_chunk(gigabit, 64, 64 << 10) == gigabit.chunk);
}

}  // namespace rueda::test::double_tree_test
