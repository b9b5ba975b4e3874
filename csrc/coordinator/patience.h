// How to wait for something that is about to happen: look again at once for a while, then give the
// processor away, then sleep.
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

class Patience {
 public:
  // `crowded`: what is waited for may need this very processor, so that spinning delays it.
  // Elsewhere it is spun for `spinning`, which is about what sleeping and being woken costs, on a
  // processor where no other rank is, as `placement` knows.
  Patience(bool crowded, Duration spinning, Placement& placement)
      : crowded_(crowded), spinning_(spinning), placement_(placement) {}

  // Something has happened.
  void renew() { looks_ = 0; }
  // After a look in vain: waits a moment and says whether to look again; false: sleep now.
  [[nodiscard]] bool look_again(Time now);

 private:
  bool crowded_;
  Duration spinning_;
  Placement& placement_;
  int looks_ = 0;
  Time since_;
};

// Whether `ranks` of this host are more than the processors that this process may run on.
[[nodiscard]] bool outnumber_processors(int ranks);

}  // namespace rueda
