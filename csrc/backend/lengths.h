// Sums of the lengths of parts, such as those of the ranks, that lie one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace rueda {

// Of the first `count`: where the next part begins.
[[nodiscard]] inline std::int64_t sum(const std::vector<std::int64_t>& lengths,
                                      std::ptrdiff_t count) {
  return std::accumulate(lengths.begin(), lengths.begin() + count, std::int64_t{0});
}

// Of all.
[[nodiscard]] inline std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  return sum(lengths, static_cast<std::ptrdiff_t>(lengths.size()));
}

}  // namespace rueda
