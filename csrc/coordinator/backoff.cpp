#include "coordinator/backoff.h"

#include <sched.h>

#include "core/cpu_quota.h"

namespace rueda {

namespace {

constexpr int max_pauses = 20;
constexpr int max_yields = 200;
// An answer of the network takes longer than one of memory. Other programs, of which this rank
// knows nothing, such as ranks in other containers, may have to run before it comes.
constexpr Duration network_pausing = std::chrono::microseconds(5);

}  // namespace

bool Backoff::back_off(Time now) {
  if (spins_++ == 0) since_ = now;
  if (now - since_ >= limit_) return false;
  if (!oversubscribed_) {
    if (now - since_ >= spinning_) return false;
    if (placement_.shares_processor()) {
      if (!placement_.move_apart(now)) sched_yield();
    } else if (limit_ != Duration::max() && now - since_ > network_pausing) {
      sched_yield();
    } else {
      pause_processor();
    }
    return true;
  }
  if (spins_ <= max_pauses) {
    pause_processor();
    return true;
  }
  if (spins_ > max_pauses + max_yields) return false;
  sched_yield();
  return true;
}

bool is_oversubscribed(int ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return true;
  const int at_once = ranks_within_cpu_quota();
  return ranks > CPU_COUNT(&allowed) || (at_once > 0 && ranks > at_once);
}

}  // namespace rueda
