// How to wait for something that is about to happen: spin for a while, then yield the
// processor, then sleep.
#pragma once

#include "core/clock.h"
#include "onehost/placement.h"

namespace rueda {

// Tells the processor that this is a waiting loop.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Backoff {
 public:
  // `oversubscribed`: what is waited for may need this very processor, so that spinning delays it.
  // Elsewhere it is spun for `spinning`, which is about what sleeping and being woken costs, on a
  // processor where no other rank is, as `placement` knows.
  Backoff(bool oversubscribed, Duration spinning, Placement& placement)
      : oversubscribed_(oversubscribed), spinning_(spinning), placement_(placement) {}

  // From now on it waits no longer than this before it says to sleep, oversubscribed or not.
  void limit(Duration longest) { limit_ = longest; }
  // Something has happened.
  void renew() { spins_ = 0; }
  // After an attempt without progress: waits a moment and says whether to try again; false: sleep
  // now.
  [[nodiscard]] bool back_off(Time now);

 private:
  bool oversubscribed_;
  Duration spinning_;
  Duration limit_ = Duration::max();
  Placement& placement_;
  int spins_ = 0;
  Time since_;
};

// Whether `ranks` of this host are more than the processors that this process may run on, or than
// its control group has time for.
[[nodiscard]] bool is_oversubscribed(int ranks);

}  // namespace rueda
