// Values round-trip; arbitrary bytes are rejected and never read out of bounds.
#include "plan/wire.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

namespace rueda::test::wire_test {
namespace {

// One value of each type, with random sizes.
struct Sample {
  std::uint8_t byte = 0;
  std::uint64_t unsigned_integer = 0;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<std::int64_t> integers;
  std::vector<int> ranks;

  friend bool operator==(const Sample&, const Sample&) = default;
};

Sample random_sample(std::mt19937_64& random) {
  // All numbers of significant bits are equally likely.
  const auto bits = [&] { return random() >> (random() % 64); };
  Sample sample;
  sample.byte = static_cast<std::uint8_t>(random());
  sample.unsigned_integer = bits();
  sample.integer = static_cast<std::int64_t>(random() % 2 == 0 ? bits() : ~bits());
  sample.real = static_cast<double>(static_cast<std::int64_t>(bits())) / 7;
  sample.text.resize(random() % 300);
  for (char& letter : sample.text) letter = static_cast<char>(random());
  sample.integers.resize(random() % 20);
  for (auto& value : sample.integers) value = static_cast<std::int64_t>(bits());
  sample.ranks.resize(random() % 5);
  for (int& rank : sample.ranks) rank = static_cast<int>(static_cast<std::uint32_t>(bits()));
  return sample;
}

std::vector<std::byte> written(const Sample& sample) {
  Writer writer;
  writer.byte(sample.byte);
  writer.unsigned_integer(sample.unsigned_integer);
  writer.integer(sample.integer);
  writer.real(sample.real);
  writer.text(sample.text);
  writer.integers(sample.integers);
  writer.integers(sample.ranks);
  return writer.take();
}

Sample read_sample(Reader& reader) {
  Sample sample;
  sample.byte = reader.byte();
  sample.unsigned_integer = reader.unsigned_integer();
  sample.integer = reader.integer();
  sample.real = reader.real();
  sample.text = reader.text();
  sample.integers = reader.integers<std::int64_t>();
  sample.ranks = reader.integers<int>();
  return sample;
}

TEST_CASE("random values come back") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    const Sample sample = random_sample(random);
    const auto bytes = written(sample);
    Reader reader(bytes);
    REQUIRE(read_sample(reader) == sample);
    REQUIRE(reader.ok());
    REQUIRE(reader.at_end());
  }
}

TEST_CASE("extreme values come back, small ones in one byte") {
  for (const std::int64_t value :
       {std::numeric_limits<std::int64_t>::min(), std::int64_t{-64}, std::int64_t{-1},
        std::int64_t{0}, std::int64_t{63}, std::numeric_limits<std::int64_t>::max()}) {
    Writer writer;
    writer.integer(value);
    writer.unsigned_integer(static_cast<std::uint64_t>(value));
    const auto bytes = writer.take();
    Reader reader(bytes);
    CHECK(reader.integer() == value);
    CHECK(reader.unsigned_integer() == static_cast<std::uint64_t>(value));
    CHECK((reader.ok() && reader.at_end()));
  }
  for (const std::int64_t value : {-64, -1, 0, 1, 63}) {
    Writer writer;
    writer.integer(value);
    CHECK(writer.take().size() == 1);
  }
}

TEST_CASE("every truncation is noticed") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    const auto bytes = written(random_sample(random));
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      // A separate copy, so that AddressSanitizer detects a read past its end.
      const std::vector<std::byte> truncated(bytes.begin(),
                                             bytes.begin() + static_cast<std::ptrdiff_t>(length));
      Reader reader(truncated);
      read_sample(reader);
      REQUIRE_FALSE(reader.ok());
      REQUIRE(reader.at_end());
    }
  }
}

TEST_CASE("random bytes are read to some end or refused") {
  std::mt19937_64 random(3);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    Reader reader(bytes);
    const Sample sample = read_sample(reader);
    // A forged length cannot make the reader allocate more than the message could hold.
    REQUIRE(sample.text.size() + sample.integers.size() + sample.ranks.size() <= bytes.size());
    if (!reader.ok()) ++refused;
    // A reader that has failed stays failed.
    if (!reader.ok()) {
      reader.byte();
      REQUIRE_FALSE(reader.ok());
    }
  }
  CHECK(refused > 10'000);
}

TEST_CASE("what no writer writes is refused") {
  const auto refuses = [](std::initializer_list<int> values, auto read) {
    std::vector<std::byte> bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    Reader reader(bytes);
    read(reader);
    return !reader.ok();
  };
  const auto unsigned_integer = [](Reader& reader) { return reader.unsigned_integer(); };
  const auto text = [](Reader& reader) { return reader.text(); };
  const std::initializer_list<int> all_ones{255, 255, 255, 255, 255, 255, 255, 255, 255, 1};
  const std::initializer_list<int> too_many_bits{255, 255, 255, 255, 255, 255, 255, 255, 255, 3};
  const std::initializer_list<int> endless{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0};
  CHECK_FALSE(refuses(all_ones, unsigned_integer));
  CHECK(refuses(too_many_bits, unsigned_integer));
  CHECK(refuses(endless, unsigned_integer));
  CHECK(refuses({3, 'a', 'b'}, text));
  CHECK(refuses(all_ones, text));

  Writer writer;
  writer.integers(std::vector<std::int64_t>{std::int64_t{1} << 32});
  const auto bytes = writer.take();
  Reader narrow(bytes);
  (void)narrow.integers<int>();
  CHECK_FALSE(narrow.ok());
}

TEST_CASE("an empty message") {
  Reader reader({});
  CHECK((reader.ok() && reader.at_end()));
  CHECK(reader.byte() == 0);
  CHECK_FALSE(reader.ok());
}

}  // namespace
}  // namespace rueda::test::wire_test
