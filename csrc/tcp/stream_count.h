// Finds by trial how many streams to one peer are worthwhile. One is enough if it fills the link;
// several help if each stream is throttled, as in clouds and on long-distance links. Pure.
//
// A trial measures two stream counts alternately, twice each, so that other changes are not
// mistaken for a gain, and only after some round trips in which new streams reach their speed. It
// tries twice as many streams, or four times as many if that does not help (the new ones may have
// got slow paths). More are kept if they carry `min_gain` times as much both times. If neither
// helps, there is a pause, longer each time, after which fewer are tried, too.
#pragma once

#include <array>
#include <cstdint>

#include "core/clock.h"

namespace rueda {

class StreamCount {
 public:
  static constexpr int max_streams = 16;
  static constexpr double min_gain = 1.15;
  // Fewer are kept if they carry at least this fraction.
  static constexpr double max_loss = 0.95;

  // `least`: never fewer than this.
  explicit StreamCount(int least = 1);

  // Number of streams that should be open and used.
  [[nodiscard]] int wanted() const { return wanted_; }
  // The same without a trial in progress.
  [[nodiscard]] int settled() const { return base_; }

  // Called from time to time. `delivered`: total bytes that have arrived at the peer. `in_use`:
  // number of streams that carry chunks. `waiting`: whether there is more to send than the streams
  // take; only such times are measured. `round_trip`: the longest of any stream.
  void observe(Time now, std::uint64_t delivered, int in_use, bool waiting,
               Duration round_trip = {});
  // The streams for the trial are not available at the moment.
  void give_up_trial(Time now);

 private:
  void take(Time now, double rate);
  void try_with(int streams);
  void judge(Time now);
  void pause(Time now);
  void measure(int streams);

  const int least_;
  int base_;       // currently used
  int candidate_;  // what it is compared with; equal if no trial is running
  int wanted_;
  std::array<double, 4> rates_{};  // measured: base, candidate, base, candidate
  std::size_t measured_ = 0;       // how many of these
  double best_rate_ = 0;           // with base_
  Time paused_until_{};
  Duration pause_;

  Time last_{};  // observation
  std::uint64_t last_delivered_ = 0;
  bool was_waiting_ = false;
  Duration busy_{};  // during the current measurement
  std::uint64_t bytes_ = 0;
  bool warm_ = false;  // its streams have reached their speed
};

}  // namespace rueda
