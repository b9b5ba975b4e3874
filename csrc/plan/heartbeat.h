// Whether the ranks that this one has connections to are still there while it waits: it asks them
// now and then, and one that is not heard for too long is lost. Pure.
//
// Nothing is asked while nothing is waited for, so a job that computes is silent. Who was itself
// stopped for long begins anew: then the silence was its own. What it has overslept for less time
// is not counted (see silence.h).
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "plan/silence.h"

namespace rueda {

class Heartbeat {
 public:
  // `timeout`: how long a rank may be silent; 0: for ever.
  Heartbeat(std::vector<int> ranks, Duration timeout);

  // What to do at `now`. `waiting`: whether this rank waits for anything.
  struct Look {
    bool ask = false;           // all of them
    std::optional<int> silent;  // for too long
  };
  [[nodiscard]] Look look(Time now, bool waiting);
  // `rank` has answered.
  void hear(int rank, Time now);
  // Whether it has been silent for too long: where an answer may have come since look().
  [[nodiscard]] bool is_silent(int rank, Time now) const;
  // `rank`, which is silent, is seen to be alive. False where that has been so for too long.
  bool excuse(int rank, Time now);
  // When to look next, while this rank waits; nothing while it does not.
  [[nodiscard]] std::optional<Time> next_look() const;

 private:
  [[nodiscard]] Duration pause() const { return timeout_ / 8; }

  const std::vector<int> ranks_;
  const Duration timeout_;
  std::map<int, Silence> silences_;    // since this rank waits; empty while it does not
  std::optional<Time> next_question_;  // the same
  Time last_look_;                     // the same
};

}  // namespace rueda
