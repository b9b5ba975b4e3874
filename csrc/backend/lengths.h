// Sums over the lengths of contiguous parts, such as those of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace rueda {

// Sum of the first `count` lengths, which is the offset of the next part.
[[nodiscard]] inline std::int64_t sum(const std::vector<std::int64_t>& lengths,
                                      std::ptrdiff_t count) {
  return std::accumulate(lengths.begin(), lengths.begin() + count, std::int64_t{0});
}

// Sum of all lengths.
[[nodiscard]] inline std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  return sum(lengths, static_cast<std::ptrdiff_t>(lengths.size()));
}

}  // namespace rueda
