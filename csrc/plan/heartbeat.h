// Whether the ranks that this one is connected to are still alive while it waits: it asks them now
// and then, and one that is silent for too long is lost. Pure.
//
// Asks nothing while this rank does not wait, so a job that computes sends nothing. A rank that was
// itself stopped for long starts over, since the silence was its own. Shorter oversleeping is not
// counted as silence (see silence.h).
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "plan/silence.h"

namespace rueda {

class Heartbeat {
 public:
  // `timeout`: how long a rank may be silent; 0: forever.
  Heartbeat(std::vector<int> ranks, Duration timeout);

  // What to do at `now`. `waiting`: whether this rank waits for anything.
  struct Look {
    bool ask = false;           // ask all of them
    std::optional<int> silent;  // a rank that has been silent for too long
  };
  [[nodiscard]] Look look(Time now, bool waiting);
  // `rank` has answered.
  void hear(int rank, Time now);
  // Whether `rank` has been silent for too long; an answer may have come since look().
  [[nodiscard]] bool is_silent(int rank, Time now) const;
  // `rank`, which is silent, is seen to be alive. False if that has been so for too long.
  bool excuse(int rank, Time now);
  // When to look next while this rank waits; empty while it does not.
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
