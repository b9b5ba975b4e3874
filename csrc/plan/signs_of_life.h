// When members of an epoch that broke were last heard of, and when this process sends them a sign
// of life itself. If a process was stopped, the silence that it measured is only its own.
#pragma once

#include <map>

#include "core/clock.h"
#include "plan/silence.h"

namespace rueda {

class SignsOfLife {
 public:
  // A member that is silent for `timeout` is lost.
  SignsOfLife(Duration timeout, Time now) : timeout_(timeout), last_call_(now) {}

  // How often a member sends a sign of life.
  [[nodiscard]] Duration beat() const { return timeout_ / 4; }
  [[nodiscard]] Time next_beat() const { return next_beat_; }
  void give(Time now) { next_beat_ = now + beat(); }

  // This process runs at this time. Returns whether it was stopped before; then nobody counts as
  // silent.
  bool notice_call(Time now);
  [[nodiscard]] Time last_call() const { return last_call_; }

  // Monitors the member from then on.
  void begin(int member, Time heard) { silences_[member] = Silence(heard); }
  void forget(int member) { silences_.erase(member); }
  void hear(int member, Time now) { silences_.at(member).hear(now); }
  [[nodiscard]] Time heard(int member) const { return silences_.at(member).heard(); }
  // When its silence is too long.
  [[nodiscard]] Time silence_end(int member) const { return silences_.at(member).end(timeout_); }
  void excuse(int member, Time now) {
    if (now >= silence_end(member)) silences_.at(member).excuse(now, timeout_);
  }

 private:
  Duration timeout_;
  std::map<int, Silence> silences_;
  Time last_call_;
  Time next_beat_;
};

}  // namespace rueda
