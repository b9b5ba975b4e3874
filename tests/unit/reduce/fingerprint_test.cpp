// Fingerprints by which ranks compare bytes; tests/parallel compares them with torch's.
#include "reduce/fingerprint.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace rueda::test::fingerprint_test {

namespace {

constexpr std::size_t block = 32 << 10;

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<std::byte> content(size);
  for (std::byte& each : content) each = static_cast<std::byte>(random());
  return content;
}

}  // namespace

TEST_CASE("one bit anywhere makes another fingerprint") {
  const std::size_t size =
      GENERATE(1, 7, 8, 9, 31, 4096, block - 1, block, block + 1, 3 * block + 5);
  std::vector<std::byte> content = random_bytes(size);
  const std::uint64_t whole = fingerprint(content);
  for (const std::size_t place : {std::size_t{0}, size / 2, size - 1}) {
    for (const int bit : {0, 7}) {
      CAPTURE(size, place, bit);
      content[place] ^= std::byte{1} << bit;
      CHECK(fingerprint(content) != whole);
      content[place] ^= std::byte{1} << bit;
    }
  }
  CHECK(fingerprint(content) == whole);
}

TEST_CASE("equal bytes at any address have one fingerprint, also filled up with zeros") {
  const std::vector<std::byte> content = random_bytes(2 * block + 13);
  std::vector<std::byte> moved(content.size() + 3);
  std::copy(content.begin(), content.end(), moved.begin() + 3);
  CHECK(fingerprint(std::span(moved).subspan(3)) == fingerprint(content));
  std::vector<std::byte> filled = content;
  filled.resize(2 * block + 16);
  CHECK(fingerprint(filled) == fingerprint(content));
  CHECK(fingerprint({}) == 0);
}

TEST_CASE("blocks that change places make another fingerprint") {
  std::vector<std::byte> content = random_bytes(3 * block);
  const std::uint64_t whole = fingerprint(content);
  std::swap_ranges(content.begin(), content.begin() + block, content.begin() + block);
  CHECK(fingerprint(content) != whole);
}

}  // namespace rueda::test::fingerprint_test
