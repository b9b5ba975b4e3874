#include "tcp/stream_count.h"

#include <algorithm>
#include <chrono>

namespace rueda {

namespace {

using namespace std::chrono_literals;

// New streams find their speed, then they are measured.
constexpr Duration warm_up = 15ms;
constexpr Duration min_busy = 40ms;
constexpr std::uint64_t min_bytes = 1 << 20;
constexpr Duration first_pause_between_trials = 500ms;
constexpr Duration longest_pause_between_trials = 60s;

}  // namespace

StreamCount::StreamCount() : pause_(first_pause_between_trials) {}

void StreamCount::observe(Time now, std::uint64_t delivered, int in_use, bool waiting) {
  if (was_waiting_ && in_use == wanted_) {
    busy_ += now - last_;
    bytes_ += delivered - last_delivered_;
  }
  last_ = now;
  last_delivered_ = delivered;
  was_waiting_ = waiting;
  if (!warm_ && busy_ >= warm_up) {
    warm_ = true;
    busy_ = {};
    bytes_ = 0;
  }
  if (!warm_ || busy_ < min_busy || bytes_ < min_bytes) return;
  const double rate = static_cast<double>(bytes_) / to_seconds(busy_);
  busy_ = {};
  bytes_ = 0;
  decide(now, rate);
}

void StreamCount::decide(Time now, double rate) {
  if (settled_) {
    if (now < settled_until_) return;
    settled_ = false;
    rate_ = rate;
  } else if (wanted_ == best_ || rate >= min_gain * rate_) {
    if (wanted_ > best_) pause_ = first_pause_between_trials;
    best_ = wanted_;
    rate_ = rate;
  } else if (wanted_ >= 4 * best_) {
    return settle(now);
  }
  if (wanted_ >= max_streams) return settle(now);
  try_with(2 * wanted_);
}

void StreamCount::try_with(int streams) {
  wanted_ = streams;
  warm_ = false;
}

void StreamCount::settle(Time now) {
  wanted_ = best_;
  settled_ = true;
  settled_until_ = now + pause_;
  pause_ = std::min(2 * pause_, longest_pause_between_trials);
}

}  // namespace rueda
