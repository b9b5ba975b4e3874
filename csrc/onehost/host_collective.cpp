#include "onehost/host_collective.h"

#include <sched.h>

#include <algorithm>

#include "core/clock.h"
#include "core/log.h"
#include "core/strings.h"
#include "onehost/huge_pages.h"

namespace rueda {

void HostCollective::start(std::uint64_t ticket) {
  ++runs_;
  ticket_ = ticket;
  stage_ = Stage::queued;
  status_ = {};
  traffic_ = {};
}

// A repeated collective keeps its tensors in place. Acts on the third run only, so that nothing is
// spent on what is tried once or twice.
void HostCollective::give(const Reach& reach, const void* address, std::size_t bytes) const {
  if (runs_ != 3 || !policy_.huge_pages || reach.place != Place::address) return;
  const std::size_t gained = put_tensor_on_huge_pages(address, bytes);
  log(LogLevel::debug, gained, " of a tensor's ", bytes, " bytes are now on huge pages");
}

bool HostCollective::advance() {
  if (done()) return false;
  bool moved = false;
  switch (stage_) {
    case Stage::queued:
      if (!channel_.turns().is_turn_of(ticket_) || !channel_.is_open()) return false;
      channel_.begin();
      prepare();
      if (!status_.ok()) return true;
      channel_.arrive();
      stage_ = Stage::arriving;
      fruitless_ = 0;
      moved = true;
      [[fallthrough]];
    case Stage::arriving:
      if (!channel_.all_arrived()) {
        poll_failed();
        return moved;
      }
      stage_ = Stage::working;
      wake_helpers();
      [[fallthrough]];
    case Stage::working:
      switch (work()) {
        case Work::more: fruitless_ = 0; return true;
        case Work::blocked: poll_failed(); return moved;
        case Work::done: break;
      }
      if (!status_.ok()) return true;
      if (!shares_tensors()) {
        complete();
        return true;
      }
      channel_.finish();
      stage_ = Stage::finishing;
      fruitless_ = 0;
      moved = true;
      [[fallthrough]];
    case Stage::finishing:
      if (!channel_.all_finished()) {
        poll_failed();
        return moved;
      }
      complete();
      return true;
    case Stage::done: return false;
  }
  return moved;
}

Status HostCollective::no_memory() const {
  const int rank = world_rank(channel_.rank());
  return {ErrorCode::internal,
          str("no memory is left on this host for the data that rank ", rank, " shares"), rank};
}

// Wakes sleepers on the second fruitless poll. Often the other ranks have arrived by the first one,
// and then nobody sleeps.
void HostCollective::poll_failed() {
  if (++fruitless_ == 2) channel_.notify();
}

// Other ranks may have gone to sleep before the last one arrived. The last rank never polls in
// vain, and without this would do all claimable work before the others learn of it.
void HostCollective::wake_helpers() {
  if (fruitless_ < 2 && is_shared_work()) channel_.notify();
}

void HostCollective::complete() {
  stage_ = Stage::done;
  channel_.notify();
  channel_.turns().end_turn();
  if (counters_ == nullptr) return;
  counters_->bytes_reduced.add(traffic_.combined);
  counters_->bytes_taken.add(traffic_.taken);
  counters_->bytes_through_kernel.add(traffic_.kernel);
}

std::vector<int> HostCollective::awaited_members() const {
  switch (stage_) {
    case Stage::arriving: return channel_.not_arrived();
    case Stage::working: return awaited_at_work();
    case Stage::finishing: return channel_.not_finished();
    default: return {};
  }
}

int HostCollective::world_rank(int member) const {
  return channel_.host().world_rank(channel_.host_rank(member));
}

std::vector<int> HostCollective::awaited() const {
  std::vector<int> ranks = awaited_members();
  for (int& rank : ranks) rank = world_rank(rank);
  return ranks;
}

void HostCollective::quiesce(bool exposed) {
  if (stage_ == Stage::done) return;
  const bool arrived = stage_ != Stage::queued;
  stage_ = Stage::done;
  channel_.stop();
  if (!exposed || !arrived) return;
  const Time begin = Clock::now();
  const Time latest = channel_.host().end_of_waiting();
  for (int member = 0; member < channel_.size(); ++member) {
    if (member == channel_.rank()) continue;
    while (!channel_.has_finished(member) && !channel_.has_stopped(member)) {
      // This rank may give up meanwhile.
      if (Clock::now() >= std::min(latest, channel_.host().end_of_waiting())) {
        log(LogLevel::error, "rank ", world_rank(member), " has not stopped within ",
            to_seconds(Clock::now() - begin),
            " s: it may still touch a tensor whose operation failed");
        return;
      }
      sched_yield();
    }
  }
}

}  // namespace rueda
