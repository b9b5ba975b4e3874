#include "onehost/wake_word.h"

namespace rueda {

void wake(WakeWord& word) {
  // A read that counts as a write: what the caller has made visible comes before it, so that either
  // the sleeper is seen here, or what it should do is seen by the sleeper.
  if (word.sleepers.fetch_add(0, std::memory_order_seq_cst) == 0) return;
  word.wakes.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(word.wakes, FutexReach::host);
}

Sleeper::Sleeper(WakeWord& word) : word_(word) {
  word_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  seen_ = word_.wakes.load(std::memory_order_seq_cst);
}

Sleeper::~Sleeper() {
  word_.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

FutexWake Sleeper::sleep(std::optional<Time> deadline) {
  return futex_wait(word_.wakes, seen_, deadline, FutexReach::host);
}

}  // namespace rueda
