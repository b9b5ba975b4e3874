#include "coordinator/plan_table.h"

#include <algorithm>
#include <map>
#include <utility>

namespace rueda {

namespace {

bool may_differ_in_first_extent(Collective collective) {
  return collective == Collective::allgather || collective == Collective::alltoall;
}

bool is_same(const Request& left, const Request& right) {
  const auto skipped = may_differ_in_first_extent(left.collective) && !left.shape.empty() ? 1 : 0;
  return left.collective == right.collective && left.dtype == right.dtype &&
         left.on_gpu == right.on_gpu && left.wire == right.wire &&
         left.compression == right.compression && left.leaf_ranks == right.leaf_ranks &&
         left.op == right.op && left.root == right.root && left.priority == right.priority &&
         left.prescale == right.prescale && left.postscale == right.postscale &&
         left.group_size == right.group_size && left.shape.size() == right.shape.size() &&
         std::equal(left.shape.begin() + skipped, left.shape.end(),
                    right.shape.begin() + skipped) &&
         left.splits == right.splits && left.group == right.group;
}

// Excludes operations on process sets, and responses that make no plan.
bool may_be_replayed(const Response& response) {
  return response.kind == ResponseKind::execute && response.absent.empty() &&
         response.request.collective <= Collective::barrier;
}

}  // namespace

std::vector<Submission> ReplayPlan::take_submissions() {
  std::vector<Submission> held;
  for (Batch& batch : batches) {
    for (Member& member : batch) {
      if (member.submission) held.push_back(*std::move(member.submission));
      member.submission.reset();
    }
  }
  return held;
}

bool ReplayPlan::is_awaited() const {
  return std::any_of(batches.begin(), batches.end(), [](const Batch& batch) {
    return std::any_of(batch.begin(), batch.end(), [](const Member& member) {
      return member.submission && member.submission->handle->is_awaited();
    });
  });
}

bool fits(const Response& agreed, const Request& request, int own_rank) {
  if (!request.error.ok() || !is_same(agreed.request, request)) return false;
  if (!covers_output(agreed.request, request)) return false;
  return agreed.request.collective != Collective::allgather ||
         agreed.first_extents[static_cast<std::size_t>(own_rank)] == request.shape.front();
}

std::vector<std::vector<const Fusion*>> batches_of_plans(const ResponseList& responses,
                                                         std::span<const Fusion> batches) {
  std::map<std::string, std::size_t> plan_of_group;
  std::vector<std::vector<const Fusion*>> plans;
  for (const Fusion& batch : batches) {
    std::vector<const Fusion*> together{&batch};
    const std::size_t index = plans.size();
    for (const std::size_t member : batch.members) {
      const std::string& group = responses[member].request.group;
      if (group.empty()) continue;
      const auto [found, is_new] = plan_of_group.try_emplace(group, index);
      if (is_new || found->second == index) continue;
      auto& other = plans[found->second];
      together.insert(together.begin(), other.begin(), other.end());
      other.clear();
      for (auto& [name, plan] : plan_of_group) {
        if (plan == found->second && name != group) plan = index;
      }
      found->second = index;
    }
    plans.push_back(std::move(together));
  }
  std::erase_if(plans, [](const auto& plan) { return plan.empty(); });
  return plans;
}

bool can_be_planned(const ResponseList& responses, std::span<const Fusion* const> batches) {
  std::map<std::string, int> missing;  // number of missing members of each group
  for (const Fusion* batch : batches) {
    for (const std::size_t index : batch->members) {
      const Response& response = responses[index];
      if (!may_be_replayed(response)) return false;
      const Request& request = response.request;
      if (request.group.empty()) continue;
      --missing.try_emplace(request.group, request.group_size).first->second;
    }
  }
  for (const auto& [group, count] : missing) {
    if (count != 0) return false;
  }
  return true;
}

void PlanTable::open(int slots) {
  by_slot_.assign(static_cast<std::size_t>(slots), nullptr);
  for (int slot = 0; slot < slots; ++slot) free_slots_.push_back(slot);
}

PlanTable::Plans PlanTable::of_group(const std::string& group) const {
  Plans plans;
  for (const auto& [name, where] : by_name_) {
    if (where.member().response->request.group == group) plans.push_back(where.plan);
  }
  std::sort(plans.begin(), plans.end(), [](const ReplayPlan* left, const ReplayPlan* right) {
    return left->place.number < right->place.number;
  });
  plans.erase(std::unique(plans.begin(), plans.end()), plans.end());
  return plans;
}

ReplayPlan& PlanTable::add(const ResponseList& responses, std::span<const Fusion* const> batches) {
  plans_.push_back(std::make_unique<ReplayPlan>());
  ReplayPlan& plan = *plans_.back();
  plan.place = {free_slots_.front(), next_plan_++};
  free_slots_.pop_front();
  by_slot_[static_cast<std::size_t>(plan.place.slot)] = &plan;
  plan.urgency.priority = responses[batches.front()->members.front()].request.priority;
  for (const Fusion* batch : batches) {
    ReplayPlan::Batch& members = plan.batches.emplace_back();
    for (const std::size_t index : batch->members) {
      const std::string& name = responses[index].request.name;
      by_name_[name] = {&plan, plan.batches.size() - 1, members.size()};
      members.push_back({std::make_shared<const Response>(responses[index]), std::nullopt});
      plan.urgency.priority = std::max(plan.urgency.priority, responses[index].request.priority);
      plan.urgency.bytes += responses[index].request.bytes();
      plan.on_gpu = plan.on_gpu || responses[index].request.on_gpu;
    }
    plan.members += members.size();
  }
  return plan;
}

void PlanTable::forget(ReplayPlan& plan) {
  for (const ReplayPlan::Batch& batch : plan.batches) {
    for (const ReplayPlan::Member& member : batch) by_name_.erase(member.response->request.name);
  }
  free_slots_.push_back(plan.place.slot);
  const auto own = std::find_if(plans_.begin(), plans_.end(),
                                [&](const auto& other) { return other.get() == &plan; });
  if (plan.joined) {  // decided and about to be logged, or undecided
    plan.forgotten = true;
    last_rounds_.push_back(std::move(*own));
  } else {
    by_slot_[static_cast<std::size_t>(plan.place.slot)] = nullptr;
  }
  plans_.erase(own);
}

void PlanTable::bury(ReplayPlan& plan) {
  by_slot_[static_cast<std::size_t>(plan.place.slot)] = nullptr;
  std::erase_if(last_rounds_, [&](const auto& other) { return other.get() == &plan; });
}

// --- Rounds

std::vector<Submission> OpenRounds::abandon(ReplayPlan& plan) {
  remove(collecting_, plan);
  remove(joined_, plan);
  plan.joined = false;
  plan.collected = 0;
  return plan.take_submissions();
}

ReplayPlan* OpenRounds::first_that_can_stall() const {
  return !joined_.empty() && !joined_.front()->off ? joined_.front() : nullptr;
}

std::optional<Time> OpenRounds::when_stalled() const {
  const ReplayPlan* const joined = first_that_can_stall();
  if (joined == nullptr || !stall_) return std::nullopt;
  const Duration stall = stall_();
  if (stall <= Duration::zero()) return std::nullopt;
  return joined->since + stall;
}

ReplayPlan* OpenRounds::overdue(Time now) const {
  for (ReplayPlan* plan : collecting_) {
    if (now - plan->since >= pause_ || plan->is_awaited()) return plan;
  }
  const auto due = when_stalled();
  return due && now >= *due ? first_that_can_stall() : nullptr;
}

std::optional<Time> OpenRounds::next_deadline() const {
  std::optional<Time> earliest;
  const auto consider = [&earliest](Time due) {
    if (!earliest || due < *earliest) earliest = due;
  };
  for (const ReplayPlan* plan : collecting_) consider(plan->since + pause_);
  if (const auto due = when_stalled()) consider(*due);
  return earliest;
}

}  // namespace rueda
