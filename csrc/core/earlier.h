// Awaited times.
#pragma once

#include <algorithm>
#include <optional>

#include "core/clock.h"

namespace rueda {

// Times may be missing: they never come.
[[nodiscard]] inline std::optional<Time> earlier(std::optional<Time> left,
                                                 std::optional<Time> right) {
  if (!left || !right) return left ? left : right;
  return std::min(*left, *right);
}

[[nodiscard]] inline bool is_due(std::optional<Time> awaited, Time now) {
  return awaited && now >= *awaited;
}

}  // namespace rueda
