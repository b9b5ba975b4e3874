// Ring operations over a transport that completes everything late and out of order.
#include "backend/ring_operation.h"

#include <catch2/catch.hpp>
#include <memory>

#include "ranks/late_allreduce.h"

namespace rueda::test::ring_operation_test {

namespace {

constexpr std::size_t element = sizeof(double);

using Ring = LateAllreduce<RingOperation>;

Ring ring_of(Network& network, std::int64_t count, std::int64_t chunk, const Reduction& reduction) {
  return {network, count, thousands_and_index, [&](const Lane& lane, std::byte* data) {
            return std::make_unique<RingOperation>(
                lane, RingPlan::allreduce(lane.rank, network.size(), count, chunk), data, element,
                &reduction);
          }};
}

}  // namespace

TEST_CASE("a ring is right, and touches no memory that is on its way, whatever comes late") {
  const unsigned eagerness = GENERATE(0U, 3U, 10U);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    Network network(size, seed);
    const auto count = static_cast<std::int64_t>(network.random()() % 60);
    const auto chunk = static_cast<std::int64_t>(1 + network.random()() % 12);
    CAPTURE(eagerness, seed, size, count, chunk);
    Reduction reduction = sum_of_doubles();
    reduction.op = seed % 2 == 0 ? ReduceOp::sum : ReduceOp::average;
    reduction.divisor = size;
    reduction.postscale = 0.5;
    Ring ring = ring_of(network, count, chunk, reduction);
    ring.run(eagerness);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(ring.operation(rank).done());
      REQUIRE(ring.operation(rank).status().ok());
      for (std::size_t i = 0; i < ring.data(rank).size(); ++i) {
        const double sum = 500.0 * size * (size + 1) + static_cast<double>(i) * size;
        const double divisor = seed % 2 == 0 ? 1 : size;
        REQUIRE(ring.data(rank)[i] == sum / divisor * 0.5);
      }
    }
  }
}

TEST_CASE("a receive or a send that fails is the ring's failure on that rank") {
  // 3 ranks with 4 chunks per segment: 16 hops each.
  check_failing_transfers(GENERATE(true, false), 3, 3 * 16, [](Network& network, int) {
    return ring_of(network, 12, 1, sum_of_doubles());
  });
}

}  // namespace rueda::test::ring_operation_test
