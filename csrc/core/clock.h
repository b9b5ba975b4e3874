// Time, always monotonic. Pure layers take a Time as an argument and never read the clock.
#pragma once

#include <chrono>

namespace rueda {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = Clock::duration;

[[nodiscard]] inline Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}
[[nodiscard]] inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace rueda
