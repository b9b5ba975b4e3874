#include "reduce/fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace rueda {

namespace {

constexpr std::size_t words_of_block = 4096;
constexpr std::size_t block_bytes = words_of_block * sizeof(std::uint64_t);

// splitmix64 of the words' indices, made odd.
constexpr std::array<std::uint64_t, words_of_block> make_weights() {
  std::array<std::uint64_t, words_of_block> weights{};
  std::uint64_t state = 0;
  for (std::uint64_t& weight : weights) {
    state += 0x9E3779B97F4A7C15;
    std::uint64_t word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9;
    word = (word ^ word >> 27) * 0x94D049BB133111EB;
    weight = (word ^ word >> 31) | 1;
  }
  return weights;
}

constexpr std::array<std::uint64_t, words_of_block> weights = make_weights();

std::uint64_t word_at(const std::byte* place) {
  std::uint64_t word = 0;
  std::memcpy(&word, place, sizeof word);
  return word;
}

// For one block, or less.
std::uint64_t sum_of(std::span<const std::byte> block) {
  const std::size_t words = block.size() / sizeof(std::uint64_t);
  // Several sums that do not depend on each other.
  std::array<std::uint64_t, 4> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= words; i += sums.size()) {
    for (std::size_t lane = 0; lane < sums.size(); ++lane) {
      sums[lane] += word_at(block.data() + (i + lane) * sizeof(std::uint64_t)) * weights[i + lane];
    }
  }
  std::uint64_t sum = sums[0] + sums[1] + sums[2] + sums[3];
  for (; i < words; ++i) sum += word_at(block.data() + i * sizeof(std::uint64_t)) * weights[i];
  if (const auto rest = block.subspan(words * sizeof(std::uint64_t)); !rest.empty()) {
    std::uint64_t last = 0;
    std::memcpy(&last, rest.data(), rest.size());
    sum += last * weights[words];
  }
  return sum;
}

}  // namespace

std::uint64_t fingerprint(std::span<const std::byte> content) {
  if (content.empty()) return 0;
  if (content.size() <= block_bytes) return sum_of(content);
  std::vector<std::uint64_t> sums;
  sums.reserve((content.size() + block_bytes - 1) / block_bytes);
  for (std::size_t begin = 0; begin < content.size(); begin += block_bytes) {
    sums.push_back(sum_of(content.subspan(begin, std::min(block_bytes, content.size() - begin))));
  }
  return fingerprint(std::as_bytes(std::span(sums)));
}

}  // namespace rueda
