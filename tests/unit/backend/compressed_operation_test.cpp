// Compressed allreduces over a transport that completes everything late and out of order.
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

#include "backend/compressed_allreduce.h"
#include "effort.h"
#include "ranks/late_allreduce.h"

namespace rueda::test::compressed_operation_test {

namespace {

constexpr int turns = 200'000;

using CompressedRanks = LateAllreduce<CompressedAllreduce, float>;

float input(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * (1 + static_cast<float>(i % 50));
}

// One operation on two tensors.
CompressedRanks ranks_of(Network& network, std::int64_t count, std::int64_t chunk,
                         const Reduction& reduction, std::int64_t link_chunk_bytes = 256 << 10) {
  return {network, count, input, [=](Lane lane, std::byte* begin) {
            lane.chunk_bytes = link_chunk_bytes;
            lane.codec_chunk_bytes = chunk * static_cast<std::int64_t>(sizeof(float));
            const std::int64_t first = count / 3;
            std::byte* const second = begin + static_cast<std::size_t>(first) * sizeof(float);
            return std::make_unique<CompressedAllreduce>(
                lane, reduction,
                std::vector<Piece>{{begin, begin, first}, {second, second, count - first}},
                [](std::size_t, int) { FAIL("all values are finite"); });
          }};
}

Reduction sum_by(CodecKind codec, int ranks) {
  Reduction reduction;
  reduction.contributors = ranks;
  reduction.compression = {codec, is_sparse(codec) ? 0.5 : 0.0};
  return reduction;
}

}  // namespace

TEST_CASE("a compressed allreduce ends with the same bits everywhere, whatever comes late") {
  const unsigned eagerness = GENERATE(0U, 3U, 10U);
  const auto codec = GENERATE(CodecKind::bfloat16, CodecKind::int8, CodecKind::top_k);
  for (unsigned seed = 0; seed < effort(40U, 8U); ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    Network network(size, seed);
    const auto count = static_cast<std::int64_t>(network.random()() % 9000);
    const std::int64_t chunk = 128 * static_cast<std::int64_t>(1 + network.random()() % 3);
    CAPTURE(eagerness, name_of(codec), seed, size, count, chunk);
    CompressedRanks allreduce = ranks_of(network, count, chunk, sum_by(codec, size));
    allreduce.run(eagerness, turns);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(allreduce.operation(rank).done());
      REQUIRE(allreduce.operation(rank).status().ok());
      REQUIRE(allreduce.operation(rank).awaited().empty());
      REQUIRE(allreduce.data(rank) == allreduce.data(0));
    }
    if (is_sparse(codec)) continue;
    for (std::size_t i = 0; i < allreduce.data(0).size(); ++i) {
      const float exact = input(0, i) * static_cast<float>(size * (size + 1) / 2);
      const float bound = static_cast<float>(size * (size + 1)) * 50 / 127;
      REQUIRE(std::fabs(allreduce.data(0)[i] - exact) <= bound);
    }
  }
}

TEST_CASE("which elements a codec chooses does not depend on the chunks of the links") {
  const auto codec = GENERATE(CodecKind::top_k, CodecKind::random_k);
  std::vector<std::vector<float>> results;
  for (const std::int64_t link_chunk_bytes : {256 << 10, 60 << 10, 512}) {
    Network network(3, 1);
    CompressedRanks allreduce =
        ranks_of(network, 50'000, 1 << 14, sum_by(codec, 3), link_chunk_bytes);
    allreduce.run(3, turns);
    REQUIRE(allreduce.operation(0).done());
    results.push_back(allreduce.data(0));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("a receive or a send that fails is the compressed allreduce's failure on that rank") {
  const auto codec = GENERATE(CodecKind::int8, CodecKind::top_k);
  CAPTURE(name_of(codec));
  const auto make = [codec](Network& network, int) {
    return ranks_of(network, 1500, 128, sum_by(codec, 3));
  };
  check_failing_transfers(GENERATE(true, false), 3, 24, make, effort(1, 3));
}

}  // namespace rueda::test::compressed_operation_test
