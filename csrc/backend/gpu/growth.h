// Growth of memory that is kept across operations.
#pragma once

#include <algorithm>
#include <cstddef>

namespace rueda {

// Doubles until large enough, so that memory rarely grows.
[[nodiscard]] inline std::size_t grown(std::size_t size, std::size_t wanted) {
  constexpr std::size_t smallest = 1 << 20;
  size = std::max(size, smallest);
  while (size < wanted) size *= 2;
  return size;
}

}  // namespace rueda
