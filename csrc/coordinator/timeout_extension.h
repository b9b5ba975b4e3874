// The least time for which ranks wait for each other in a process set before an operation fails.
// Any thread may ask for more at any time.
#pragma once

#include <atomic>

#include "core/clock.h"

namespace rueda {

class TimeoutExtension {
 public:
  void extend(Duration least) {
    Duration::rep now = least_.load();
    while (now < least.count() && !least_.compare_exchange_weak(now, least.count())) {
    }
  }
  [[nodiscard]] Duration least() const { return Duration(least_.load()); }

 private:
  std::atomic<Duration::rep> least_{0};
};

}  // namespace rueda
