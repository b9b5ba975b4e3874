// How many streams to one peer are worth having, found by trying: one is enough where it fills the
// link; several are where each is held back by itself, as clouds and long ways do. Pure.
//
// Twice as many are tried as long as that carries `min_gain` times as much. Where it does not, the
// number goes back, and is tried again only after a while.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/clock.h"

namespace rueda {

class StreamCount {
 public:
  static constexpr int max_streams = 16;
  static constexpr double min_gain = 1.15;

  // So many should be open and used.
  [[nodiscard]] int wanted() const { return wanted_; }

  // Told now and then. `delivered`: bytes that have arrived at the peer, ever. `in_use`: how many
  // streams carry chunks. `waiting`: whether there is more to send than the streams take; only such
  // times are measured.
  void observe(Time now, std::uint64_t delivered, int in_use, bool waiting);

 private:
  void decide(Time now, double rate);
  void restart();

  int wanted_ = 1;
  int measured_ = 0;  // the number whose rate is known, or 0
  double rate_ = 0;   // with that number, in bytes a second
  Time settled_until_{};
  bool settled_ = false;

  Time last_{};  // observation
  std::uint64_t last_delivered_ = 0;
  bool was_waiting_ = false;
  Duration busy_{};
  std::uint64_t bytes_ = 0;
  int rounds_ = 0;  // of the number that is being measured
};

}  // namespace rueda
