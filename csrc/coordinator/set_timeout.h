// How long ranks wait for each other in a process set before an operation fails. Any thread may
// change it at any time, also for what is being waited for; what counts is its value on the set's
// first rank.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/clock.h"

namespace rueda {

class SetTimeout {
 public:
  // From now on this long, instead of what was asked for before; zero: the world's stall_error.
  void set(Duration timeout) {
    own_.store(timeout.count());
    least_.store(0);
    changes_.fetch_add(1);
  }
  // From now on at least this long.
  void extend(Duration least) {
    Duration::rep now = least_.load();
    while (now < least.count() && !least_.compare_exchange_weak(now, least.count())) {
    }
  }
  // How often set() has changed it.
  [[nodiscard]] unsigned changes() const { return changes_.load(std::memory_order_relaxed); }
  // `stall_error`: the world's. Zero: operations never fail.
  [[nodiscard]] Duration get(Duration stall_error) const {
    const Duration own(own_.load());
    const Duration usual = own > Duration::zero() ? own : stall_error;
    return usual <= Duration::zero() ? Duration::zero() : std::max(usual, Duration(least_.load()));
  }

 private:
  std::atomic<Duration::rep> own_{0};  // zero: the world's
  std::atomic<Duration::rep> least_{0};
  std::atomic<unsigned> changes_{0};
};

}  // namespace rueda
