// How long to spin for a network before sleeping, learned from the length of sleeps. Pure.
//
// A network answers within microseconds, or sends many bytes for milliseconds, during which nobody
// should spin. After a short sleep the next spin is longer, up to `max_spin`; after a longer sleep
// it is half as long, down to none. Waits of 100 to 300 µs then cost both a spin and a sleep;
// measured call times determined `short_sleep`.
#pragma once

#include <algorithm>
#include <chrono>

#include "core/clock.h"

namespace rueda {

class NetworkSpinning {
 public:
  static constexpr Duration max_spin = std::chrono::microseconds(100);
  static constexpr Duration min_spin = std::chrono::microseconds(3);
  // With 50 µs, 1 KiB between four hosts that share two processors took 1.6 times as long, since
  // nobody spun; with 200 µs it takes as long as it did without learning.
  static constexpr Duration short_sleep = std::chrono::microseconds(200);

  // 0: do not spin.
  [[nodiscard]] Duration limit() const { return limit_; }
  // Reports how long a sleep took until the network had something.
  void learn_from(Duration sleep) {
    if (sleep < short_sleep) {
      limit_ = std::clamp(2 * limit_, min_spin, max_spin);
    } else {
      limit_ = limit_ / 2 < min_spin ? Duration::zero() : limit_ / 2;
    }
  }

 private:
  Duration limit_ = max_spin;
};

}  // namespace rueda
