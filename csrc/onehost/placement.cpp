#include "onehost/placement.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace rueda {

namespace {

// A move takes some 20 microseconds. If the system keeps moving the thread back, moves take at most
// 1% of the time.
constexpr auto between_moves = std::chrono::milliseconds(2);

// As stored in the headers, where 0 means unknown.
std::uint32_t encode(int processor) {
  return static_cast<std::uint32_t>(processor) + 1;
}

}  // namespace

Placement::Placement(std::shared_ptr<HostMemory> host)
    : host_(std::move(host)), processors_(::sysconf(_SC_NPROCESSORS_ONLN)) {}

void Placement::say(int processor) {
  std::atomic<std::uint32_t>& own = host_->header(host_->rank()).processor;
  // Peers read it all the time, so it is written only when it changes.
  if (own.load(std::memory_order_relaxed) != encode(processor)) {
    own.store(encode(processor), std::memory_order_relaxed);
  }
}

bool Placement::is_taken(int processor) const {
  for (int rank = 0; rank < host_->size(); ++rank) {
    if (rank != host_->rank() &&
        host_->header(rank).processor.load(std::memory_order_relaxed) == encode(processor)) {
      return true;
    }
  }
  return false;
}

bool Placement::shares_processor() {
  if (!host_) return false;
  const int here = ::sched_getcpu();  // read from memory that the kernel updates
  if (here < 0) return false;
  say(here);
  return is_taken(here);
}

bool Placement::move_apart(Time now) {
  if (!host_ || now < next_move_) return false;
  next_move_ = now + between_moves;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  const int here = ::sched_getcpu();
  int target = 0;
  while (target < CPU_SETSIZE &&
         (target == here || !CPU_ISSET(target, &allowed) || is_taken(target))) {
    ++target;
  }
  if (target == CPU_SETSIZE) return false;
  // Published first, so that the other rank, which runs as soon as this thread is gone, does not
  // move to the same processor.
  say(target);
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(target, &only);
  if (::sched_setaffinity(0, sizeof only, &only) != 0) return false;
  // If all processors were allowed, later additions are allowed, too.
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int each = 0; each < CPU_SETSIZE; ++each) CPU_SET(each, &all);
  const cpu_set_t& before = CPU_COUNT(&allowed) == processors_ ? all : allowed;
  if (::sched_setaffinity(0, sizeof before, &before) != 0) {
    ::sched_setaffinity(0, sizeof all, &all);  // the cgroup has just lost all the allowed ones
  }
  return true;
}

}  // namespace rueda
