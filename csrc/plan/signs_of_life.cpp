#include "plan/signs_of_life.h"

namespace rueda {

bool SignsOfLife::notice_call(Time now) {
  const bool was_stopped = now - last_call_ > beat() + timeout_ / 2;
  const Duration late = lateness(now, next_beat_, last_call_);
  for (auto& [member, silence] : silences_) {
    if (was_stopped) {
      silence.hear(now);
    } else {
      silence.miss(late);
    }
  }
  last_call_ = now;
  return was_stopped;
}

}  // namespace rueda
