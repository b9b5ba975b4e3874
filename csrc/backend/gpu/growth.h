// How memory grows that is kept from operation to operation.
#pragma once

#include <algorithm>
#include <cstddef>

namespace rueda {

// Doubled until it is enough, so that it seldom grows.
[[nodiscard]] inline std::size_t grown(std::size_t size, std::size_t wanted) {
  constexpr std::size_t smallest = 1 << 20;
  size = std::max(size, smallest);
  while (size < wanted) size *= 2;
  return size;
}

}  // namespace rueda
