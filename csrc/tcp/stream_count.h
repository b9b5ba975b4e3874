// How many streams to one peer are worth having, found by trying: one is enough where it fills the
// link; several are where each is held back by itself, as clouds and long ways do. Pure.
//
// A trial measures two numbers in turn, twice each, so that what changes meanwhile is not taken for
// a gain, and each only after some round trips, in which new streams find their speed. Twice as
// many are tried, and four times as many where that does not help (the new ones may have come upon
// slow ways); more are kept where each time they carry `min_gain` times as much. Where neither
// helps there is a pause, longer each time, after which fewer are tried, too.
#pragma once

#include <array>
#include <cstdint>

#include "core/clock.h"

namespace rueda {

class StreamCount {
 public:
  static constexpr int max_streams = 16;
  static constexpr double min_gain = 1.15;
  // Fewer are kept where they carry this part of what more do.
  static constexpr double max_loss = 0.95;

  // `least`: so many there are in any case.
  explicit StreamCount(int least = 1);

  // So many should be open and used.
  [[nodiscard]] int wanted() const { return wanted_; }
  // Without what is only tried.
  [[nodiscard]] int settled() const { return base_; }

  // Told now and then. `delivered`: bytes that have arrived at the peer, ever. `in_use`: how many
  // streams carry chunks. `waiting`: whether there is more to send than the streams take; only such
  // times are measured. `round_trip`: of the longest way that a stream takes.
  void observe(Time now, std::uint64_t delivered, int in_use, bool waiting,
               Duration round_trip = {});
  // What is tried cannot be had at the moment.
  void give_up_trial(Time now);

 private:
  void take(Time now, double rate);
  void try_with(int streams);
  void judge(Time now);
  void pause(Time now);
  void measure(int streams);

  const int least_;
  int base_;       // what is used
  int candidate_;  // what is compared with it, or as many: no trial goes on
  int wanted_;
  std::array<double, 4> rates_{};  // of the trial: base, candidate, base, candidate
  std::size_t measured_ = 0;       // of these
  double best_rate_ = 0;           // with base_
  Time paused_until_{};
  Duration pause_;

  Time last_{};  // observation
  std::uint64_t last_delivered_ = 0;
  bool was_waiting_ = false;
  Duration busy_{};  // of the measurement that is going on
  std::uint64_t bytes_ = 0;
  bool warm_ = false;  // its streams have found their speed
};

}  // namespace rueda
