#include "api/succession.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/inherited_sets.h"

namespace rueda {

Succession::Succession(const First& first, const Options& options, Start start)
    : start_(std::move(start)),
      first_epoch_(first.epoch),
      init_timeout_(options.init_timeout),
      sets_(first.sets),
      taken_epoch_(first.epoch) {}

Expected<std::unique_ptr<Succession>> Succession::open(Bootstrap& bootstrap, const First& first,
                                                       const Options& options, Start start,
                                                       Time deadline) {
  std::unique_ptr<Succession> succession(new Succession(first, options, std::move(start)));
  succession->taken_members_.resize(static_cast<std::size_t>(first.world.topology.size));
  std::iota(succession->taken_members_.begin(), succession->taken_members_.end(), 0);
  auto membership = Membership::open(
      bootstrap, first.world, options, first.epoch,
      [self = succession.get()](World world, Bootstrap& members, std::uint64_t later) {
        return self->enter(std::move(world), members, later);
      },
      deadline);
  if (!membership) return membership.status();
  succession->membership_ = std::move(membership).value();
  succession->reports_->membership = succession->membership_.get();
  return succession;
}

Succession::~Succession() {
  {
    const std::lock_guard lock(reports_->mutex);
    reports_->membership = nullptr;
  }
  membership_.reset();  // joins its thread
  // The others must continue without this process; a clean leave would keep it in their world.
  if (next_) next_->abort("it did not enter the world that was formed");
}

Succession::OnFailure Succession::failure_of(std::uint64_t epoch) const {
  return [reports = reports_, epoch](const Status& reason) {
    const std::lock_guard lock(reports->mutex);
    if (reports->membership != nullptr) reports->membership->report(epoch, reason);
  };
}

// Called on Membership's thread.
Status Succession::enter(World world, Bootstrap& bootstrap, std::uint64_t epoch) {
  try {
    auto sets = inherit_sets(bootstrap, sets_->hand_over(), Clock::now() + seconds(init_timeout_));
    if (!sets) return sets.status();
    auto runtime = start_(std::move(world), bootstrap, epoch, failure_of(epoch), *sets);
    sets_ = std::move(sets).value();
    std::shared_ptr<Runtime> skipped;
    {
      const std::lock_guard lock(mutex_);
      skipped = std::exchange(next_, std::move(runtime));
      next_epoch_ = epoch;
    }
    // It broke before it was taken. Others may not know yet: to them this is not a clean leave.
    if (skipped) skipped->abort("another world was formed");
  } catch (const Error& error) {
    return Status(error.code(), error.what(), error.peer());
  }
  return {};
}

Expected<Succession::Next> Succession::take_next(Time deadline) {
  Next next;
  auto change = membership_->await_newer(taken_epoch_, deadline);
  while (change && !next.runtime) {
    {
      const std::lock_guard lock(mutex_);
      if (next_epoch_ == change->epoch) next.runtime = std::exchange(next_, nullptr);
    }
    // Otherwise a later world is being entered, and has replaced it.
    if (!next.runtime) change = membership_->await_newer(change->epoch, deadline);
  }
  if (!change) return change.status();
  next.recovery.epoch = change->epoch;
  const auto rank_of = [this](int process) {
    const auto found = std::find(taken_members_.begin(), taken_members_.end(), process);
    return found == taken_members_.end() ? -1 : static_cast<int>(found - taken_members_.begin());
  };
  for (const int process : change->members) {
    next.recovery.previous_ranks.push_back(rank_of(process));
  }
  for (const auto& [process, cause] : change->lost) {
    const int rank = rank_of(process);
    if (rank >= 0) next.recovery.lost.push_back({rank, cause.to_string(), cause.details().reason});
  }
  taken_epoch_ = change->epoch;
  taken_members_ = change->members;
  return next;
}

}  // namespace rueda
