// How many streams to one peer are worth having, found by trying: one is enough where it fills the
// link; several are where each is held back by itself, as clouds and long ways do. Pure.
//
// Twice as many are tried, and four times as many where that does not help (the new ones may have
// come upon slow ways), as long as that carries `min_gain` times as much. Where neither does, the
// number goes back, and is tried again after a pause, twice as long each time.
#pragma once

#include <cstdint>

#include "core/clock.h"

namespace rueda {

class StreamCount {
 public:
  static constexpr int max_streams = 16;
  static constexpr double min_gain = 1.15;

  StreamCount();

  // So many should be open and used.
  [[nodiscard]] int wanted() const { return wanted_; }

  // Told now and then. `delivered`: bytes that have arrived at the peer, ever. `in_use`: how many
  // streams carry chunks. `waiting`: whether there is more to send than the streams take; only such
  // times are measured.
  void observe(Time now, std::uint64_t delivered, int in_use, bool waiting);

 private:
  void decide(Time now, double rate);
  void try_with(int streams);
  void settle(Time now);

  int wanted_ = 1;
  int best_ = 1;     // with this number,
  double rate_ = 0;  // so many bytes a second; 0 before it was measured
  bool settled_ = false;
  Time settled_until_{};
  Duration pause_;

  Time last_{};  // observation
  std::uint64_t last_delivered_ = 0;
  bool was_waiting_ = false;
  Duration busy_{};  // of the measurement that is going on
  std::uint64_t bytes_ = 0;
  bool warm_ = false;  // its streams have found their speed
};

}  // namespace rueda
