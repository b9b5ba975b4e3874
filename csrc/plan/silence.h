// For how long another rank has not been heard, and when that is too long. Pure.
//
// What counts is time in which it could have been heard. Who listens and did not get to run itself
// has neither asked nor read; and a rank of the same host whose process is seen to wait for a
// processor lives, and is excused, though not for ever: it may run in circles.
#pragma once

#include <algorithm>

#include "core/clock.h"

namespace rueda {

class Silence {
 public:
  Silence() = default;
  explicit Silence(Time heard) : heard_(heard) {}

  void hear(Time now) { *this = Silence(now); }
  [[nodiscard]] Time heard() const { return heard_; }

  // The listener has looked this much later than it wanted to.
  void miss(Duration late) { missed_ += late; }
  // The rank has been seen to be alive while its silence was over: it gets an eighth of `timeout`
  // from now on. False where it has been excused for three times `timeout` altogether.
  bool excuse(Time now, Duration timeout) {
    if (excused_ >= max_excuses * timeout) return false;
    excused_ += std::max(now - end(timeout), Duration()) + timeout / 8;
    return true;
  }

  // When it is too long.
  [[nodiscard]] Time end(Duration timeout) const { return heard_ + timeout + missed_ + excused_; }

 private:
  static constexpr int max_excuses = 3;

  Time heard_;
  Duration missed_{};
  Duration excused_{};
};

// How much later than at `due` the listener looks at `now`, having looked at `before`.
[[nodiscard]] inline Duration lateness(Time now, Time due, Time before) {
  return std::max(now - std::max(due, before), Duration());
}

}  // namespace rueda
