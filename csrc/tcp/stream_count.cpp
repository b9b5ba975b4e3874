#include "tcp/stream_count.h"

#include <algorithm>
#include <chrono>

namespace rueda {

namespace {

using namespace std::chrono_literals;

// Streams need to reach their speed before they are measured. With BBR, a stream that was one of
// several needs some tens of milliseconds to fill the link alone. A new or idle one doubles per
// round trip: it takes ten to grow from 14 KB to 14 MB in flight, which is 1 Gbit/s at 100 ms. Data
// then arrives in one burst per round trip, so a single round trip says little.
constexpr Duration least_warm_up = 80ms;
constexpr int warm_up_round_trips = 10;
constexpr Duration least_busy = 60ms;
constexpr int busy_round_trips = 2;
// Fraction of the best rate below which the link counts as changed.
constexpr double changed = 0.5;
constexpr std::uint64_t min_bytes = 512 << 10;
constexpr Duration first_pause_between_trials = 2s;
constexpr Duration longest_pause_between_trials = 60s;

}  // namespace

StreamCount::StreamCount(int least)
    : least_(std::min(least, max_streams)),
      base_(least_),
      candidate_(least_),
      wanted_(least_),
      pause_(first_pause_between_trials) {}

void StreamCount::observe(Time now, std::uint64_t delivered, int in_use, bool waiting,
                          Duration round_trip) {
  if (was_waiting_ && in_use == wanted_) {
    busy_ += now - last_;
    bytes_ += delivered - last_delivered_;
  }
  last_ = now;
  last_delivered_ = delivered;
  was_waiting_ = waiting;
  if (candidate_ == base_) {
    if (waiting && now >= paused_until_) {
      try_with(base_ > least_ ? std::max(base_ / 2, least_) : std::min(2 * base_, max_streams));
    }
    return;
  }
  if (!warm_ && busy_ >= std::max(least_warm_up, warm_up_round_trips * round_trip)) {
    warm_ = true;
    busy_ = {};
    bytes_ = 0;
  }
  const Duration min_busy = std::max(least_busy, busy_round_trips * round_trip);
  if (!warm_ || busy_ < min_busy || bytes_ < min_bytes) return;
  take(now, static_cast<double>(bytes_) / to_seconds(busy_));
}

void StreamCount::measure(int streams) {
  wanted_ = streams;
  warm_ = false;
  busy_ = {};
  bytes_ = 0;
}

void StreamCount::try_with(int streams) {
  candidate_ = streams;
  measured_ = 0;
  measure(base_);
}

void StreamCount::take(Time now, double rate) {
  rates_[measured_++] = rate;
  if (measured_ == rates_.size()) return judge(now);
  measure(measured_ % 2 == 0 ? base_ : candidate_);
}

void StreamCount::judge(Time now) {
  const auto [first_base, first, second_base, second] = rates_;
  const bool is_more = candidate_ > base_;
  // A trial may leave streams slower than before, so their best rate counts, unless the link has
  // changed.
  const double base_rate = std::max(first_base, second_base);
  best_rate_ = base_rate < changed * best_rate_ ? base_rate : std::max(best_rate_, base_rate);
  const bool gains = std::min(first, second) >= min_gain * best_rate_;
  const bool loses_little = first + second >= max_loss * (first_base + second_base);
  const int before = base_;
  if (is_more ? gains : loses_little) {
    base_ = candidate_;
    best_rate_ = std::max(first, second);
    pause_ = first_pause_between_trials;
    if (!is_more || base_ == max_streams) return pause(now);
    return try_with(std::min(2 * base_, max_streams));
  }
  const bool may_try_more = base_ < max_streams && candidate_ < std::min(4 * before, max_streams);
  if (!may_try_more) return pause(now);
  try_with(std::min(is_more ? 2 * candidate_ : 2 * base_, max_streams));
}

void StreamCount::give_up_trial(Time now) {
  if (candidate_ != base_) pause(now);
}

void StreamCount::pause(Time now) {
  candidate_ = base_;
  measure(base_);
  paused_until_ = now + pause_;
  pause_ = std::min(2 * pause_, longest_pause_between_trials);
}

}  // namespace rueda
