// Sums of rows with keys, compared with a map from keys to sums.
#include "reduce/row_sums.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace rueda::test::row_sums_test {

namespace {

template <class Key>
struct Part {
  std::vector<Key> keys;
  std::vector<float> values;
};

template <class Key>
std::vector<KeyedRows> rows_of(const std::vector<Part<Key>>& parts) {
  std::vector<KeyedRows> rows;
  for (const Part<Key>& part : parts) {
    rows.push_back({part.keys.data(), reinterpret_cast<const std::byte*>(part.values.data()),
                    part.keys.size()});
  }
  return rows;
}

// Sums in the order of the parts and of the rows within each.
template <class Key>
std::map<Key, std::vector<float>> reference(const std::vector<Part<Key>>& parts, std::size_t width,
                                            int divisor, double factor) {
  std::map<Key, std::vector<float>> sums;
  for (const Part<Key>& part : parts) {
    for (std::size_t row = 0; row < part.keys.size(); ++row) {
      const auto [place, is_new] = sums.try_emplace(part.keys[row], width);
      for (std::size_t i = 0; i < width; ++i) {
        const float value = part.values[row * width + i];
        place->second[i] = is_new ? value : place->second[i] + value;
      }
    }
  }
  for (auto& [key, sum] : sums) {
    for (float& value : sum) {
      value = value / static_cast<float>(divisor) * static_cast<float>(factor);
    }
  }
  return sums;
}

enum class Keys { any, sorted, distinct };

template <class Key>
void check(Key extent, Keys kind) {
  const std::size_t count = GENERATE(0U, 1U, 2U, 7U, 100U, 3000U);
  const std::size_t width = GENERATE(0U, 1U, 3U, 16U);
  const std::size_t number_of_parts = GENERATE(1U, 2U, 5U, 8U, 9U);
  const int divisor = GENERATE(1, 3);
  std::mt19937_64 random(count + width + number_of_parts);
  std::vector<Part<Key>> parts(number_of_parts);
  for (Part<Key>& part : parts) {
    for (std::size_t i = 0; i < count; ++i) {
      part.keys.push_back(static_cast<Key>(random() % static_cast<std::uint64_t>(extent)));
    }
    if (kind != Keys::any) std::ranges::sort(part.keys);
    if (kind == Keys::distinct) {
      part.keys.erase(std::ranges::unique(part.keys).begin(), part.keys.end());
    }
    for (std::size_t i = 0; i < part.keys.size() * width; ++i) {
      part.values.push_back(std::uniform_real_distribution(-1.0F, 1.0F)(random));
    }
  }
  const auto expected = reference(parts, width, divisor, 0.3);
  const RowSums sums(rows_of(parts), sizeof(Key), width, DataType::float32);
  REQUIRE(sums.count() == static_cast<std::int64_t>(expected.size()));
  std::vector<std::int64_t> keys(expected.size());
  std::vector<float> values(expected.size() * width);
  sums.write(keys.data(), reinterpret_cast<std::byte*>(values.data()), divisor, 0.3);
  std::size_t place = 0;
  for (const auto& [key, sum] : expected) {
    REQUIRE(keys[place] == key);
    for (std::size_t i = 0; i < width; ++i) REQUIRE(values[place * width + i] == sum[i]);
    ++place;
  }
}

}  // namespace

TEST_CASE("rows with the same key are added in order, whatever the keys") {
  const Keys kind = GENERATE(Keys::any, Keys::sorted, Keys::distinct);
  SECTION("few, so that most repeat") {
    check<std::int32_t>(5, kind);
  }
  SECTION("of 4 bytes") {
    check<std::int32_t>(INT32_MAX, kind);
  }
  SECTION("of 8 bytes") {
    check<std::int64_t>(INT64_MAX, kind);
  }
  SECTION("dense, so that neighbours are summed together") {
    check<std::int64_t>(4000, kind);
  }
}

TEST_CASE("sums of 16-bit floats are rounded once, after they are divided and multiplied") {
  // 2048 + 1 has no float16, so that 2048 + 1 + 1 would remain 2048 if it were rounded in between.
  const std::array<std::uint16_t, 3> halves{0x6800, 0x3c00, 0x3c00};
  const std::array<std::int64_t, 3> keys{9, 9, 9};
  const KeyedRows rows{keys.data(), reinterpret_cast<const std::byte*>(halves.data()), 3};
  const RowSums sums({&rows, 1}, sizeof(std::int64_t), 1, DataType::float16);
  REQUIRE(sums.count() == 1);
  std::int64_t key = 0;
  std::uint16_t sum = 0;
  sums.write(&key, reinterpret_cast<std::byte*>(&sum));
  CHECK(key == 9);
  CHECK(sum == 0x6801);  // 2050
  sums.write(&key, reinterpret_cast<std::byte*>(&sum), 2, 4.0);
  CHECK(sum == 0x6c01);  // 4100
}

TEST_CASE("integers are divided towards negative infinity, and booleans are or'ed") {
  const std::array<std::int32_t, 2> keys{1, 1};
  const std::array<std::int16_t, 2> integers{-4, -3};
  const KeyedRows numbers{keys.data(), reinterpret_cast<const std::byte*>(integers.data()), 2};
  std::int64_t key = 0;
  std::int16_t mean = 0;
  RowSums({&numbers, 1}, 4, 1, DataType::int16).write(&key, reinterpret_cast<std::byte*>(&mean), 2);
  CHECK(mean == -4);
  const std::array<bool, 2> truths{false, true};
  const KeyedRows flags{keys.data(), reinterpret_cast<const std::byte*>(truths.data()), 2};
  bool any = false;
  RowSums({&flags, 1}, 4, 1, DataType::boolean).write(&key, reinterpret_cast<std::byte*>(&any));
  CHECK(any);
}

}  // namespace rueda::test::row_sums_test
