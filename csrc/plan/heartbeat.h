// Whether the ranks that this one has connections to are still there while it waits: it asks them
// now and then, and one that does not answer in time is lost. Pure.
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
  // `patience`: how long a rank may owe an answer; 0: for ever.
  Heartbeat(std::vector<int> ranks, Duration patience);

  // What to do at `now`. `waiting`: whether this rank waits for anything.
  struct Look {
    std::vector<int> ask;       // send each a question
    std::optional<int> silent;  // owes an answer for too long
  };
  [[nodiscard]] Look look(Time now, bool waiting);
  // `rank` has answered.
  void hear(int rank);
  // When to look next, while this rank waits; nothing while it does not.
  [[nodiscard]] std::optional<Time> next_look() const;

 private:
  [[nodiscard]] Duration pause() const { return patience_ / 4; }

  const std::vector<int> ranks_;
  const Duration patience_;
  std::map<int, Time> asked_;  // who owes an answer, and since when
  std::optional<Time> next_;   // while this rank waits
};

}  // namespace rueda
