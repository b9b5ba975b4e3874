// Properties of ring plans; all ranks' plans are executed by ranks/ring_simulator.h.
#include "plan/ring_plan.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "effort.h"
#include "ranks/ring_simulator.h"

namespace rueda::test::ring_plan_test {
namespace {

constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
constexpr std::array<std::int64_t, 4> chunk_sizes{1, 3, 64, huge};

using Lengths = std::vector<std::int64_t>;
using Arrays = std::vector<std::vector<std::int64_t>>;

template <class Plan>
std::vector<RingPlan> plans_of(int size, const Plan& plan) {
  std::vector<RingPlan> plans;
  for (int rank = 0; rank < size; ++rank) plans.push_back(plan(rank));
  return plans;
}

// Lengths from 0 to 40, about a third of them 0.
Lengths uneven_lengths(int size, std::mt19937& random) {
  Lengths lengths;
  for (int i = 0; i < size; ++i) {
    lengths.push_back(random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 41));
  }
  return lengths;
}

Arrays random_arrays(int size, std::int64_t count, std::mt19937& random) {
  Arrays arrays(static_cast<std::size_t>(size),
                std::vector<std::int64_t>(static_cast<std::size_t>(count)));
  for (auto& array : arrays) {
    for (auto& element : array) element = static_cast<std::int64_t>(random() % 2001) - 1000;
  }
  return arrays;
}

std::vector<std::int64_t> serial_sum(const Arrays& arrays) {
  std::vector<std::int64_t> sum(arrays[0].size(), 0);
  for (const auto& array : arrays) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += array[i];
  }
  return sum;
}

std::vector<std::int64_t> part_of(const std::vector<std::int64_t>& array, const Segment& segment) {
  const auto first = array.begin() + segment.offset;
  return {first, first + segment.count};
}

// Runs the plans on `arrays` and returns the number of elements sent.
std::int64_t run_sum(std::vector<RingPlan> plans, Arrays& arrays, std::mt19937& random) {
  RingSimulator<std::int64_t> simulator(std::move(plans), arrays, std::plus<>());
  simulator.run(random);
  return simulator.elements_sent();
}

std::int64_t total(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

TEST_CASE("allreduce leaves every rank the sum, having sent 2(P-1)n elements in 2(P-1) steps") {
  std::mt19937 random(1);
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    const std::int64_t many = effort(1000, 200);
    for (const std::int64_t count : std::set<std::int64_t>{0, 1, 2, size - 1, size, 7, 97, many}) {
      for (const std::int64_t chunk : chunk_sizes) {
        CAPTURE(size, count, chunk);
        Arrays arrays = random_arrays(size, count, random);
        const auto sum = serial_sum(arrays);
        const auto plans =
            plans_of(size, [&](int rank) { return RingPlan::allreduce(rank, size, count, chunk); });
        CHECK(plans[0].steps() == 2 * (size - 1));
        CHECK(run_sum(plans, arrays, random) == 2 * (size - 1) * count);
        CHECK(arrays == Arrays(static_cast<std::size_t>(size), sum));
      }
    }
  }
}

TEST_CASE("reduce_scatter leaves each rank the sum of its segment, however uneven") {
  std::mt19937 random(2);
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    for (const std::int64_t chunk : chunk_sizes) {
      CAPTURE(size, chunk);
      const Lengths lengths = uneven_lengths(size, random);
      Arrays arrays = random_arrays(size, total(lengths), random);
      const auto sum = serial_sum(arrays);
      const auto plans =
          plans_of(size, [&](int rank) { return RingPlan::reduce_scatter(rank, lengths, chunk); });
      CHECK(plans[0].steps() == size - 1);
      CHECK(run_sum(plans, arrays, random) == (size - 1) * total(lengths));
      for (int rank = 0; rank < size; ++rank) {
        const auto index = static_cast<std::size_t>(rank);
        const Segment own = plans[index].own_segment();
        CHECK(own.count == lengths[index]);
        CHECK(part_of(arrays[index], own) == part_of(sum, own));
      }
    }
  }
}

TEST_CASE("allgather leaves every rank all segments, however uneven") {
  std::mt19937 random(3);
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    for (const std::int64_t chunk : chunk_sizes) {
      CAPTURE(size, chunk);
      const Lengths lengths = uneven_lengths(size, random);
      Arrays arrays = random_arrays(size, total(lengths), random);
      const auto plans =
          plans_of(size, [&](int rank) { return RingPlan::allgather(rank, lengths, chunk); });
      std::vector<std::int64_t> gathered;
      for (std::size_t rank = 0; rank < plans.size(); ++rank) {
        const auto own = part_of(arrays[rank], plans[rank].own_segment());
        gathered.insert(gathered.end(), own.begin(), own.end());
      }
      CHECK(plans[0].steps() == size - 1);
      CHECK(run_sum(plans, arrays, random) == (size - 1) * total(lengths));
      CHECK(arrays == Arrays(static_cast<std::size_t>(size), gathered));
    }
  }
}

TEST_CASE("allgather after reduce_scatter is an allreduce over uneven segments") {
  std::mt19937 random(4);
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    CAPTURE(size);
    const Lengths lengths = uneven_lengths(size, random);
    Arrays arrays = random_arrays(size, total(lengths), random);
    const auto sum = serial_sum(arrays);
    run_sum(plans_of(size, [&](int rank) { return RingPlan::reduce_scatter(rank, lengths, 5); }),
            arrays, random);
    run_sum(plans_of(size, [&](int rank) { return RingPlan::allgather(rank, lengths, 7); }), arrays,
            random);
    CHECK(arrays == Arrays(static_cast<std::size_t>(size), sum));
  }
}

TEST_CASE("allreduce gives the same bits on every rank where rounding depends on the order") {
  std::mt19937 random(5);
  for (const int size : efforts({2, 3, 4, 7, 16, 17}, {2, 3, 7})) {
    for (const std::int64_t chunk : chunk_sizes) {
      CAPTURE(size, chunk);
      const std::size_t count = effort(211, 101);
      std::vector<std::vector<float>> arrays(static_cast<std::size_t>(size));
      std::vector<double> sum(count, 0.0);
      for (auto& array : arrays) {
        for (std::size_t i = 0; i < count; ++i) {
          const double sign = random() % 2 == 0 ? 1.0 : -1.0;
          const double magnitude =
              std::ldexp(static_cast<double>(random()), -static_cast<int>(random() % 40));
          array.push_back(static_cast<float>(sign * magnitude));
          sum[i] += static_cast<double>(array.back());
        }
      }
      RingSimulator<float> simulator(
          plans_of(size, [&](int rank) { return RingPlan::allreduce(rank, size, count, chunk); }),
          arrays, std::plus<>());
      simulator.run(random);
      int differing = 0;
      int wrong = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float first = arrays[0][i];
        for (const auto& array : arrays) {
          if (std::bit_cast<std::uint32_t>(array[i]) != std::bit_cast<std::uint32_t>(first))
            ++differing;
        }
        // Each of P-1 roundings loses at most half a unit in the last place of a partial sum, which
        // is below P * 2^32.
        const double bound = size * std::ldexp(size, 32 - 24);
        if (!(std::fabs(static_cast<double>(first) - sum[i]) <= bound)) ++wrong;
      }
      CHECK(differing == 0);
      CHECK(wrong == 0);
    }
  }
}

// Hops at both ends, around the change of phase, and at random.
std::set<std::int64_t> sample_of_hops(const RingPlan& plan, std::mt19937_64& random) {
  std::set<std::int64_t> sample;
  const std::int64_t half = plan.hops() / 2;
  for (const std::int64_t index : {std::int64_t{0}, half - 1, half, plan.hops() - 1}) {
    if (index >= 0 && index < plan.hops()) sample.insert(index);
  }
  for (int i = 0; i < 50 && plan.hops() > 0; ++i) {
    sample.insert(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(plan.hops())));
  }
  return sample;
}

void check_hop(const RingPlan& plan, const RingPlan& next, int size, std::int64_t index,
               std::int64_t count, std::int64_t chunk) {
  CAPTURE(index);
  const Hop hop = plan.hop(index);
  CHECK(hop.step == index / plan.chunks());
  CHECK(hop.chunk == index % plan.chunks());
  CHECK(hop.reduces == (hop.step < size - 1));
  for (const Segment& part : {hop.send, hop.recv}) {
    CHECK((part.offset >= 0 && part.count >= 0 && part.count <= chunk));
    CHECK(part.count <= count - part.offset);
  }
  // A rank sends what the next rank receives in its hop of the same index, ...
  const Hop theirs = next.hop(index);
  CHECK(hop.send == theirs.recv);
  CHECK(hop.reduces == theirs.reduces);
  // ... which was received `chunks` hops earlier, unless the rank owned it from the start, ...
  if (index >= plan.chunks()) CHECK(plan.hop(index - plan.chunks()).recv == hop.send);
  // ... and in the second phase a receive overwrites what was sent (size - 1) * chunks hops
  // earlier.
  if (!hop.reduces) CHECK(plan.hop(index - (size - 1) * plan.chunks()).send == hop.recv);
}

TEST_CASE("huge plans cost nothing and do not overflow") {
  std::mt19937_64 random(6);
  const std::int64_t count = (std::int64_t{1} << 40) + 1;
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    for (const std::int64_t chunk :
         {std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 18, huge}) {
      CAPTURE(size, chunk);
      const auto plans =
          plans_of(size, [&](int rank) { return RingPlan::allreduce(rank, size, count, chunk); });
      const RingPlan& plan = plans[random() % plans.size()];
      const std::int64_t largest = count / size + (count % size != 0 ? 1 : 0);
      CHECK(plan.chunks() == (chunk == huge ? 1 : (largest + chunk - 1) / chunk));
      CHECK(plan.hops() == 2 * (size - 1) * plan.chunks());
      const Segment last = plan.segment(size - 1);
      CHECK(last.offset + last.count == count);
      for (const std::int64_t index : sample_of_hops(plan, random)) {
        check_hop(plan, plans[static_cast<std::size_t>(plan.next())], size, index, count, chunk);
      }
    }
  }
}

TEST_CASE("segments are as even as possible and follow one another") {
  for (int size = 1; size <= effort(17, 9); size += size < 5 ? 1 : effort(1, 4)) {
    for (const std::int64_t count : {0, 1, 5, 16, 97, 1000}) {
      CAPTURE(size, count);
      const RingPlan plan = RingPlan::allreduce(size - 1, size, count, 8);
      std::int64_t offset = 0;
      for (int owner = 0; owner < size; ++owner) {
        const Segment segment = plan.segment(owner);
        CHECK(segment.offset == offset);
        CHECK(segment.count == count / size + (owner < count % size ? 1 : 0));
        offset += segment.count;
      }
      CHECK(offset == count);
      CHECK(plan.next() == 0);
      CHECK(plan.previous() == (size == 1 ? 0 : size - 2));
    }
  }
}

TEST_CASE("a chunk of no or negative size counts as one element") {
  for (const std::int64_t chunk : {0, -5}) {
    CHECK(RingPlan::allreduce(0, 2, 10, chunk).chunks() == 5);
  }
}

TEST_CASE("the simulator notices a plan that is not executable") {
  std::mt19937 random(7);
  Arrays arrays = random_arrays(2, 10, random);
  // Rank 1 gathers what rank 0 reduces, with different lengths.
  std::vector<RingPlan> plans{RingPlan::reduce_scatter(0, {4, 6}, 8),
                              RingPlan::allgather(1, {6, 4}, 8)};
  CHECK_THROWS_AS(run_sum(plans, arrays, random), std::logic_error);
}

}  // namespace
}  // namespace rueda::test::ring_plan_test
