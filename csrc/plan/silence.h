// How long another rank has been silent, and when that is too long. Pure.
//
// Only time in which it could have been heard counts. A listener that did not get to run has
// neither asked nor read. A rank of the same host whose process is seen to wait for a processor is
// alive, and is excused, though not forever: it may be in an infinite loop.
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
  // The rank was seen to be alive although its silence was too long: it gets an eighth of `timeout`
  // from now on. False if it has been excused for three times `timeout` altogether.
  bool excuse(Time now, Duration timeout) {
    if (excused_ >= max_excuses * timeout) return false;
    excused_ += std::max(now - end(timeout), Duration()) + timeout / 8;
    return true;
  }

  // When the silence is too long.
  [[nodiscard]] Time end(Duration timeout) const { return heard_ + timeout + missed_ + excused_; }

 private:
  static constexpr int max_excuses = 3;

  Time heard_;
  Duration missed_{};
  Duration excused_{};
};

// How much later than `due` the listener looks at `now`, having last looked at `before`.
[[nodiscard]] inline Duration lateness(Time now, Time due, Time before) {
  return std::max(now - std::max(due, before), Duration());
}

}  // namespace rueda
