#include "coordinator/patience.h"

#include <sched.h>

namespace rueda {

namespace {

constexpr int pauses = 20;
constexpr int yields = 200;

}  // namespace

bool Patience::look_again(Time now) {
  if (looks_++ == 0) since_ = now;
  if (!crowded_) {
    if (now - since_ >= spinning_) return false;
    if (placement_.shares_processor()) {
      if (!placement_.move_apart(now)) sched_yield();
    } else {
      pause_processor();
    }
    return true;
  }
  if (looks_ <= pauses) {
    pause_processor();
    return true;
  }
  if (looks_ > pauses + yields) return false;
  sched_yield();
  return true;
}

bool outnumber_processors(int ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return true;
  return ranks > CPU_COUNT(&allowed);
}

}  // namespace rueda
