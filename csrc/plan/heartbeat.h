// Whether the ranks that this one has connections to are still there while it waits: it asks them
// now and then, and one that is not heard for too long is lost. Pure.
//
// Nothing is asked while nothing is waited for, so a job that computes is silent. Who was itself
// stopped for long begins anew: then the silence was its own.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/clock.h"

namespace rueda {

class Heartbeat {
 public:
  // `patience`: how long a rank may be silent; 0: for ever.
  Heartbeat(std::vector<int> ranks, Duration patience);

  // What to do at `now`. `waiting`: whether this rank waits for anything.
  struct Look {
    bool ask = false;           // all of them
    std::optional<int> silent;  // for too long
  };
  [[nodiscard]] Look look(Time now, bool waiting);
  // `rank` has answered.
  void hear(int rank, Time now);
  // When to look next, while this rank waits; nothing while it does not.
  [[nodiscard]] std::optional<Time> next_look() const;

 private:
  [[nodiscard]] Duration pause() const { return patience_ / 8; }

  const std::vector<int> ranks_;
  const Duration patience_;
  std::map<int, Time> heard_;          // since this rank waits; empty while it does not
  std::optional<Time> next_question_;  // the same
};

}  // namespace rueda
