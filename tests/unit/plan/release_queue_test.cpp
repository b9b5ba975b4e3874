// In which order the root releases complete tensors, and which it holds back.
#include "plan/release_queue.h"

#include <catch2/catch.hpp>

namespace rueda::test::release_queue_test {

namespace {

// The root of a world of one rank, with everything that is added submitted.
struct Root {
  explicit Root(std::int64_t fusion_threshold)
      : queue(tensors, builder, naming, fusion_threshold) {}

  void add(const std::string& name, std::int32_t priority = 0, const std::string& group = "") {
    AnnouncedTensor& tensor = tensors.add(name).first->second;
    Request request;
    request.name = name;
    request.shape = {8};  // 32 bytes
    request.priority = priority;
    request.group = group;
    request.group_size = group.empty() ? 0 : 2;
    tensor.variant_of(request).ranks = {0};
    queue.add(name);
  }

  std::vector<std::string> release() {
    std::vector<std::string> names;
    for (const Response& response : queue.release()) {
      names.push_back((response.kind == ResponseKind::error ? "error " : "") +
                      response.request.name);
    }
    return names;
  }

  Tree tree{0, 1, 4};
  Subtrees subtrees{tree};
  SetNaming naming{{0}, ""};
  JoinedRanks joined{tree, subtrees};
  AnnouncedTensors tensors{tree, subtrees, joined};
  ResponseBuilder builder{tensors, naming};
  ReleaseQueue queue;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the most urgent is released first, and a group when its last member is complete") {
  Root root(0);
  root.add("b", 1);
  root.add("z", 2, "group");
  root.add("a", 1);
  REQUIRE(root.release() == Names{"b", "a"});
  REQUIRE(root.queue.empty());
  root.add("y", 2, "group");
  REQUIRE(root.release() == Names{"y", "z"});
}

TEST_CASE("while much is under way what is not urgent is held back until there is enough to fuse") {
  Root root(96);
  root.queue.set_load({.is_busy = true, .most_urgent = 1});
  root.add("a", 1);
  root.add("b", 2);
  std::vector<std::string> held = root.queue.take_held();
  REQUIRE(held == Names{"a"});
  REQUIRE(root.release() == Names{"b"});
  root.tensors.erase("b");
  root.queue.hold(std::move(held));
  REQUIRE_FALSE(root.queue.empty());
  root.add("c");
  root.add("d");
  REQUIRE(root.queue.take_held().empty());
  REQUIRE(root.release() == Names{"a", "c", "d"});
}

TEST_CASE("an error comes before what can be done, and takes its group along") {
  Root root(0);
  root.add("a", 9);
  root.add("b", 0, "group");
  root.add("c", 0, "group");
  Request wrong = root.tensors.at("c").request();
  wrong.error = Status(ErrorCode::invalid_argument, "is wrong");
  root.tensors.at("c").variants.front().request = wrong;
  REQUIRE(root.release() == Names{"error c", "a"});
}

}  // namespace rueda::test::release_queue_test
