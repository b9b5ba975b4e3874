// Samples of keys, and what they tell of the union of several parts.
#include "reduce/key_samples.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <vector>

namespace rueda::test::key_samples_test {

namespace {

template <class Key>
KeyedRows rows_of(const std::vector<Key>& keys) {
  return {keys.data(), nullptr, keys.size()};
}

std::vector<std::int64_t> distinct_keys(std::mt19937_64& random, std::size_t count,
                                        std::int64_t extent) {
  std::set<std::int64_t> keys;
  std::uniform_int_distribution<std::int64_t> any(0, extent - 1);
  while (keys.size() < count) keys.insert(any(random));
  return {keys.begin(), keys.end()};
}

// All that a rank tells: its sample, which is all of its keys if they are few.
struct Part {
  std::vector<std::int64_t> sample;
  std::int64_t rows;
};

Part part_of(const std::vector<std::int64_t>& keys, std::size_t limit) {
  return {sample_keys(rows_of(keys), sizeof(std::int64_t), limit),
          static_cast<std::int64_t>(keys.size())};
}

UnionSample union_of(const std::vector<Part>& parts, std::int64_t extent) {
  std::vector<KeySample> samples;
  for (const Part& part : parts) samples.push_back({rows_of(part.sample), part.rows});
  return {samples, sizeof(std::int64_t), extent};
}

}  // namespace

TEST_CASE("a sample depends on the keys alone, not on their order and type") {
  constexpr std::size_t limit = 64;
  const std::size_t count = GENERATE(0U, 1U, 63U, 64U, 65U, 255U, 256U, 257U, 20000U);
  std::mt19937_64 random(count);
  std::vector<std::int64_t> keys = distinct_keys(random, count, 1'000'000);
  const auto sample = sample_keys(rows_of(keys), sizeof(std::int64_t), limit);
  CHECK(sample.size() == std::min(count, limit));
  CHECK(std::ranges::is_sorted(sample));
  CHECK(std::ranges::includes(keys, sample));
  std::ranges::shuffle(keys, random);
  CHECK(sample_keys(rows_of(keys), sizeof(std::int64_t), limit) == sample);
  const std::vector<std::int32_t> narrow(keys.begin(), keys.end());
  CHECK(sample_keys(rows_of(narrow), sizeof(std::int32_t), limit) == sample);
}

TEST_CASE("the sample of a part is that of its halves") {
  constexpr std::size_t limit = 32;
  std::mt19937_64 random(7);
  const auto keys = distinct_keys(random, 5000, INT64_MAX);
  const std::vector<std::int64_t> low(keys.begin(), keys.begin() + 2000);
  const std::vector<std::int64_t> high(keys.begin() + 2000, keys.end());
  std::vector<std::int64_t> both = part_of(low, limit).sample;
  const auto more = part_of(high, limit).sample;
  both.insert(both.end(), more.begin(), more.end());
  CHECK(sample_keys(rows_of(both), sizeof(std::int64_t), limit) == part_of(keys, limit).sample);
}

TEST_CASE("the union of parts that are known whole is exact") {
  const std::size_t parts = GENERATE(1U, 3U, 8U, 9U);  // more are not merged but sorted
  std::mt19937_64 random(parts);
  std::set<std::int64_t> all;
  std::vector<Part> given;
  for (std::size_t i = 0; i < parts; ++i) {
    const auto keys = distinct_keys(random, 10 * i, 300);
    all.insert(keys.begin(), keys.end());
    given.push_back(part_of(keys, 256));
  }
  const UnionSample sample = union_of(given, 300);
  CHECK(sample.rows() == static_cast<std::int64_t>(all.size()));
  for (const std::int64_t key : sample.boundaries(4)) CHECK(all.contains(key));
  CHECK(sample.boundaries(4).size() == (all.empty() ? 0 : 3));
}

TEST_CASE("the rows of a union are estimated, whatever the parts have in common") {
  constexpr std::size_t limit = 256;
  constexpr std::int64_t extent = 10'000'000;
  const std::size_t common = GENERATE(0U, 10'000U, 20'000U);
  const std::size_t parts = GENERATE(2U, 4U, 12U);
  std::mt19937_64 random(common + parts);
  const auto shared = distinct_keys(random, common, extent);
  std::set<std::int64_t> all(shared.begin(), shared.end());
  std::vector<Part> given;
  for (std::size_t i = 0; i < parts; ++i) {
    std::set<std::int64_t> keys(shared.begin(), shared.end());
    for (const auto key : distinct_keys(random, 20'000 - common, extent)) keys.insert(key);
    all.insert(keys.begin(), keys.end());
    given.push_back(part_of({keys.begin(), keys.end()}, limit));
  }
  const UnionSample sample = union_of(given, extent);
  // The estimate's standard deviation is 1/16 of it; 5 of those.
  const auto exact = static_cast<double>(all.size());
  CHECK(std::abs(static_cast<double>(sample.rows()) - exact) < exact * 5 / 16);
  // Each quarter has about as many.
  const auto cuts = sample.boundaries(4);
  REQUIRE(cuts.size() == 3);
  const auto below = std::distance(all.begin(), all.lower_bound(cuts[1]));
  CHECK(std::abs(static_cast<double>(below) / exact - 0.5) < 0.2);
}

TEST_CASE("an estimate is at least the largest part, and at most all rows or the extent") {
  std::mt19937_64 random(3);
  const auto keys = distinct_keys(random, 1000, 1000);  // each that there can be
  const UnionSample whole = union_of({part_of(keys, 16), part_of(keys, 16)}, 1000);
  CHECK(whole.rows() == 1000);
  const auto few = distinct_keys(random, 500, 1'000'000);
  const UnionSample alone = union_of({part_of(few, 16), part_of({}, 16)}, 1'000'000);
  CHECK(alone.rows() == 500);
}

}  // namespace rueda::test::key_samples_test
