// Tree sums, compared with pairwise sums that are each rounded.
#include "reduce/tree_combiner.h"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "plan/leaf_tree.h"
#include "reduce/reduce.h"
#include "unit/reduce/reduce_reference.h"

namespace rueda::test::tree_combiner_test {

namespace {

Bytes numbers(DataType dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::size_t at = 0; at < bytes.size(); at += size_of(dtype)) {
    // Between 1 and 4, so that most sums are rounded and none is infinite.
    const double value = std::uniform_real_distribution(1.0, 4.0)(random);
    if (dtype == DataType::float64) {
      std::memcpy(&bytes[at], &value, sizeof value);
    } else if (dtype == DataType::float32) {
      const auto narrow = static_cast<float>(value);
      std::memcpy(&bytes[at], &narrow, sizeof narrow);
    } else {  // the exponent of 1, 7 random fraction bits
      const std::uint16_t one = dtype == DataType::bfloat16 ? 0x3f80 : 0x3c00;
      const auto bits = static_cast<std::uint16_t>(one + (random() & 0x7f));
      std::memcpy(&bytes[at], &bits, sizeof bits);
    }
  }
  return bytes;
}

// Pairwise reduction, level by level.
Bytes reference(const Combination& combination, const std::vector<Bytes>& inputs,
                const std::vector<int>& merges, std::int64_t count) {
  std::vector<Bytes> stack;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    stack.push_back(inputs[i]);
    for (int left = merges[i]; left > 0; --left) {
      const Bytes right = stack.back();
      stack.pop_back();
      reduce(stack.back().data(), right.data(), count, combination.dtype, combination.op);
    }
  }
  const Combiner last(combination);
  Bytes result = stack.front();
  std::byte* const target = result.data();
  const std::byte* const root = stack.front().data();
  last({&target, 1}, {&root, 1}, count, Stores::cached);
  return result;
}

}  // namespace

TEST_CASE("every node is rounded, whatever the length, the divisor and the place of the result") {
  const DataType dtype =
      GENERATE(DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64);
  const std::int64_t count = GENERATE(std::int64_t{1}, 33, 1024, 5000);
  const int sources = GENERATE(1, 2, 3, 8, 13);
  const int divisor = GENERATE(1, 3);
  const std::vector<int> merges = plan_leaves(divide_leaves(sources, sources), sources).merges;
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> addresses;
  for (int i = 0; i < sources; ++i) {
    inputs.push_back(numbers(dtype, count, static_cast<unsigned>(i)));
  }
  const Combination combination{
      .dtype = dtype, .op = divisor == 1 ? ReduceOp::sum : ReduceOp::average, .divisor = divisor};
  const Bytes expected = reference(combination, inputs, merges, count);
  for (const Bytes& input : inputs) addresses.push_back(input.data());
  Bytes beside(inputs.front().size());
  // One target is separate; the other is the first input.
  const std::array targets{beside.data(), inputs.front().data()};
  TreeCombiner combine(combination, merges);
  combine(targets, addresses, count, Stores::streaming);
  CHECK(beside == expected);
  CHECK(inputs.front() == expected);
}

}  // namespace rueda::test::tree_combiner_test
