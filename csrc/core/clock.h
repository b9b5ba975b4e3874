// Time, always monotonic. Pure layers take a Time as an argument and never read the clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

namespace rueda {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = Clock::duration;

// About 30 years; can be added to any time.
inline constexpr double forever_seconds = 1e9;

// At most forever_seconds, also for infinity; 0 for NaN.
[[nodiscard]] inline Duration seconds(double value) {
  const double upper = value < forever_seconds ? value : forever_seconds;
  const double bounded = std::isnan(value) ? 0 : std::max(upper, -forever_seconds);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(bounded));
}
[[nodiscard]] inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace rueda
