// How a thread waits for other ranks of its host.
#pragma once

#include <sched.h>

#include "onehost/wake.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rueda {

// Tells the processor that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// First looks again and again, since what is waited for mostly comes within a microsecond; where
// ranks outnumber processors it soon gives the processor to those waited for; and at last it says
// that it is time to sleep.
class Patience {
 public:
  explicit Patience(bool outnumbered) : outnumbered_(outnumbered) {}

  // After a look that found nothing; false when it is time to sleep.
  bool bear() {
    if (++looks_ < spins) {
      relax();
      return true;
    }
    if (outnumbered_) {
      if (looks_ >= spins + yields) return false;
      sched_yield();
      return true;
    }
    if (looks_ >= long_spins) return false;
    relax();
    return true;
  }
  void renew() { looks_ = 0; }
  [[nodiscard]] int looks() const { return looks_; }

 private:
  static constexpr int spins = 20;
  static constexpr int yields = 2000;
  static constexpr int long_spins = 20000;  // about a millisecond

  const bool outnumbered_;
  int looks_ = 0;
};

}  // namespace rueda
