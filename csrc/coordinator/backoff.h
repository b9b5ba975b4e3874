// How to wait for something that is about to happen: spin for a while, then yield the processor,
// then sleep.
#pragma once

#include "core/clock.h"
#include "onehost/placement.h"

namespace rueda {

// Tells the processor that this is a spin loop.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Backoff {
 public:
  // `oversubscribed`: what is awaited may need this very processor, so that spinning delays it.
  // Otherwise it spins for `spinning`, about the cost of sleeping and being woken, if no other rank
  // is on this processor according to `placement`. A spin that is limited, since it waits for the
  // network, soon yields the processor in between.
  Backoff(bool oversubscribed, Duration spinning, Placement& placement)
      : oversubscribed_(oversubscribed), spinning_(spinning), placement_(placement) {}

  // From now on it waits no longer than this before it says to sleep, oversubscribed or not.
  void limit(Duration longest) { limit_ = longest; }
  // Something has happened: starts over.
  void renew() { spins_ = 0; }
  // After an attempt without progress: waits a moment and returns whether to try again; false:
  // sleep now.
  [[nodiscard]] bool back_off(Time now);

 private:
  bool oversubscribed_;
  Duration spinning_;
  Duration limit_ = Duration::max();
  Placement& placement_;
  int spins_ = 0;
  Time since_;
};

// Whether `ranks` ranks of this host exceed the processors that this process may use, or its
// control group's CPU quota.
[[nodiscard]] bool is_oversubscribed(int ranks);

}  // namespace rueda
