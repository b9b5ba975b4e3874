#include "core/fork.h"

#include <pthread.h>

#include <atomic>

namespace rueda {

namespace {

std::atomic<int> generation{0};

}  // namespace

int fork_generation() {
  static const int watching = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  (void)watching;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace rueda
