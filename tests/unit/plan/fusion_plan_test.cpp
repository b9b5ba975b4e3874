// Properties of fuse(): which responses share a buffer.
#include "plan/fusion_plan.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <set>

namespace rueda::test::fusion_plan_test {

namespace {

Response allreduce(std::int64_t count, DataType dtype = DataType::float32) {
  Response response;
  response.request.shape = {count};
  response.request.dtype = dtype;
  return response;
}

std::vector<std::vector<std::size_t>> members_of(const std::vector<Fusion>& fusions) {
  std::vector<std::vector<std::size_t>> members;
  for (const Fusion& fusion : fusions) members.push_back(fusion.members);
  return members;
}

using Batches = std::vector<std::vector<std::size_t>>;

ResponseList random_list(std::mt19937& random) {
  constexpr std::array dtypes{DataType::float32, DataType::float16, DataType::int64};
  ResponseList list(random() % 60);
  for (Response& response : list) {
    response = allreduce(static_cast<std::int64_t>(random() % 40), dtypes[random() % 3]);
    if (random() % 5 == 0) response.request.op = ReduceOp::max;
    if (random() % 5 == 0) response.request.prescale = 0.5;
    if (random() % 8 == 0) response.request.postscale = 2;
    if (random() % 5 == 0) response.request.priority = 3;
    if (random() % 8 == 0) response.absent = {1, 3};
    if (random() % 8 == 0) response.request.collective = Collective::broadcast;
    if (random() % 12 == 0) response.kind = ResponseKind::error;
  }
  return list;
}

bool fusable(const Response& response) {
  return response.kind == ResponseKind::execute &&
         response.request.collective == Collective::allreduce;
}

TEST_CASE("every response is in one batch, batches keep to the limit and to one kind, in order") {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const ResponseList list = random_list(random);
    const auto threshold = static_cast<std::int64_t>(random() % 400);
    const std::vector<Fusion> fusions = fuse(list, threshold);
    std::set<std::size_t> seen;
    std::size_t previous_first = 0;
    for (const Fusion& fusion : fusions) {
      REQUIRE(std::is_sorted(fusion.members.begin(), fusion.members.end()));
      REQUIRE((seen.empty() || fusion.members.front() > previous_first));
      previous_first = fusion.members.front();
      const Response& first = list[previous_first];
      std::size_t bytes = 0;
      for (const std::size_t member : fusion.members) {
        REQUIRE(seen.insert(member).second);
        const Response& response = list[member];
        bytes += response.request.bytes();
        if (fusion.members.size() == 1) continue;
        REQUIRE((fusable(response) && response.request.dtype == first.request.dtype));
        REQUIRE((response.request.op == first.request.op && response.absent == first.absent));
        REQUIRE(response.request.prescale == first.request.prescale);
        REQUIRE(response.request.postscale == first.request.postscale);
      }
      if (fusion.members.size() > 1) REQUIRE(bytes <= static_cast<std::size_t>(threshold));
    }
    REQUIRE(seen.size() == list.size());
    REQUIRE(members_of(fuse(list, threshold)) == members_of(fusions));
  }
}

TEST_CASE("what differs in anything that a batch has in common is never fused") {
  struct Deviation {
    const char* what;
    void (*apply)(Response&);
  };
  const std::vector<Deviation> deviations{
      {"device", [](Response& it) { it.request.on_gpu = true; }},
      {"dtype", [](Response& it) { it.request.dtype = DataType::float64; }},
      {"wire dtype", [](Response& it) { it.request.wire = DataType::bfloat16; }},
      {"codec", [](Response& it) { it.request.compression = {CodecKind::int8, 0}; }},
      {"op", [](Response& it) { it.request.op = ReduceOp::max; }},
      {"prescale factor", [](Response& it) { it.request.prescale = 0.5; }},
      {"postscale factor", [](Response& it) { it.request.postscale = 0.5; }},
      {"absent ranks", [](Response& it) { it.absent = {1}; }},
      {"collective", [](Response& it) { it.request.collective = Collective::broadcast; }},
  };
  for (const Deviation& deviation : deviations) {
    CAPTURE(deviation.what);
    ResponseList list{allreduce(1), allreduce(1), allreduce(1)};
    deviation.apply(list[1]);
    REQUIRE(members_of(fuse(list, 64)) == Batches{{0, 2}, {1}});
  }
}

TEST_CASE("fusion looks past what does not fit") {
  SECTION("another dtype") {
    const ResponseList list{allreduce(1), allreduce(1, DataType::int64), allreduce(1),
                            allreduce(1, DataType::int64)};
    REQUIRE(members_of(fuse(list, 64)) == Batches{{0, 2}, {1, 3}});
  }
  SECTION("a tensor that is too large for the rest of the batch, or for any") {
    const ResponseList list{allreduce(10), allreduce(8), allreduce(100), allreduce(6),
                            allreduce(2)};
    REQUIRE(members_of(fuse(list, 64)) == Batches{{0, 3}, {1, 4}, {2}});
  }
  SECTION("an error") {
    ResponseList list{allreduce(1), allreduce(1), allreduce(1)};
    list[1].kind = ResponseKind::error;
    REQUIRE(members_of(fuse(list, 64)) == Batches{{0, 2}, {1}});
  }
}

TEST_CASE("limits of the threshold") {
  const ResponseList list{allreduce(1), allreduce(0), allreduce(0), allreduce(1)};
  REQUIRE(members_of(fuse(list, 0)) == Batches{{0}, {1}, {2}, {3}});
  REQUIRE(members_of(fuse(list, -5)) == Batches{{0}, {1}, {2}, {3}});
  REQUIRE(members_of(fuse(list, std::numeric_limits<std::int64_t>::max())) ==
          Batches{{0, 1, 2, 3}});
  REQUIRE(fuse(ResponseList{}, 64).empty());
  REQUIRE(members_of(fuse({allreduce(8), allreduce(8)}, 64)) == Batches{{0, 1}});
  REQUIRE(members_of(fuse({allreduce(8), allreduce(9)}, 64)) == Batches{{0}, {1}});
}

TEST_CASE(
    "many tensors of which no two fit together are planned, the small ones among them fused") {
  ResponseList list;
  for (int i = 0; i < 100'000; ++i) list.push_back(allreduce(i % 100 == 99 ? 1 : 10));
  const std::vector<Fusion> fusions = fuse(list, 64);
  REQUIRE(fusions.size() == 99'000);
}

}  // namespace

TEST_CASE("what differs in priority is not fused") {
  ResponseList list{allreduce(1), allreduce(1), allreduce(1), allreduce(1)};
  list[1].request.priority = list[2].request.priority = -4;
  CHECK(members_of(fuse(list, 1 << 20)) == Batches{{0, 3}, {1, 2}});
}

}  // namespace rueda::test::fusion_plan_test
