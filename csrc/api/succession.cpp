#include "api/succession.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rueda {

Succession::Succession(Start start) : start_(std::move(start)) {}

Expected<std::unique_ptr<Succession>> Succession::open(Bootstrap& bootstrap, const World& first,
                                                       const Options& options, Start start,
                                                       Time deadline) {
  std::unique_ptr<Succession> succession(new Succession(std::move(start)));
  succession->taken_members_.resize(static_cast<std::size_t>(first.topology.size));
  std::iota(succession->taken_members_.begin(), succession->taken_members_.end(), 0);
  auto membership = Membership::open(
      bootstrap, first, options,
      [self = succession.get()](World world, Bootstrap& members, std::uint64_t epoch) {
        return self->enter(std::move(world), members, epoch);
      },
      deadline);
  if (!membership) return membership.status();
  succession->membership_ = std::move(membership).value();
  return succession;
}

Succession::~Succession() {
  membership_.reset();  // ends its thread
  if (next_) next_->shutdown();
}

Succession::OnFailure Succession::failure_of(std::uint64_t epoch) {
  return [this, epoch](const Status& reason) { membership_->report(epoch, reason); };
}

// By the membership's thread.
Status Succession::enter(World world, Bootstrap& bootstrap, std::uint64_t epoch) {
  try {
    auto runtime = start_(std::move(world), bootstrap, failure_of(epoch));
    std::shared_ptr<Runtime> skipped;
    {
      const std::lock_guard lock(mutex_);
      skipped = std::exchange(next_, std::move(runtime));
    }
    if (skipped) skipped->shutdown();  // it broke before anybody took it
  } catch (const Error& error) {
    return Status(error.code(), error.what(), error.peer());
  }
  return {};
}

Expected<Succession::Next> Succession::take_next(Time deadline) {
  auto change = membership_->await_newer(taken_epoch_, deadline);
  if (!change) return change.status();
  Next next;
  {
    const std::lock_guard lock(mutex_);
    next.runtime = std::exchange(next_, nullptr);
  }
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
    if (rank >= 0) next.recovery.lost.push_back({rank, cause.to_string()});
  }
  taken_epoch_ = change->epoch;
  taken_members_ = change->members;
  return next;
}

}  // namespace rueda
