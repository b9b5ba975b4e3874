// The earlier of two awaited times.
#pragma once

#include <algorithm>
#include <optional>

#include "core/clock.h"

namespace rueda {

// Either may be missing: it never comes.
[[nodiscard]] inline std::optional<Time> earlier(std::optional<Time> left,
                                                 std::optional<Time> right) {
  if (!left || !right) return left ? left : right;
  return std::min(*left, *right);
}

}  // namespace rueda
