#include "tcp/stream_count.h"

#include <chrono>

namespace rueda {

namespace {

using namespace std::chrono_literals;

// A round is over after both. The first round of a number is not counted: windows still grow.
constexpr Duration min_busy = 20ms;
constexpr std::uint64_t min_bytes = 1 << 20;
constexpr int uncounted_rounds = 1;
constexpr Duration between_trials = 20s;

}  // namespace

void StreamCount::restart() {
  busy_ = {};
  bytes_ = 0;
}

void StreamCount::observe(Time now, std::uint64_t delivered, int in_use, bool waiting) {
  const bool counts = was_waiting_ && in_use == wanted_;
  if (counts) {
    busy_ += now - last_;
    bytes_ += delivered - last_delivered_;
  }
  last_ = now;
  last_delivered_ = delivered;
  was_waiting_ = waiting;
  if (busy_ < min_busy || bytes_ < min_bytes) return;
  const double rate = static_cast<double>(bytes_) / to_seconds(busy_);
  restart();
  if (rounds_++ < uncounted_rounds) return;
  decide(now, rate);
}

void StreamCount::decide(Time now, double rate) {
  if (settled_) {
    rate_ = rate;
    if (now < settled_until_) return;
    settled_ = false;
    measured_ = wanted_;
  } else if (measured_ == 0 || rate >= min_gain * rate_) {
    measured_ = wanted_;
    rate_ = rate;
  } else {
    wanted_ = measured_;
    settled_ = true;
    settled_until_ = now + between_trials;
    rounds_ = 0;
    return;
  }
  if (wanted_ >= max_streams) {
    settled_ = true;
    settled_until_ = now + between_trials;
    return;
  }
  wanted_ *= 2;
  rounds_ = 0;
}

}  // namespace rueda
