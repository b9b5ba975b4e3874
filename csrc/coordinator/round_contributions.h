// The data that members of a plan send along when they join its rounds, if it is small: see
// EagerExchange.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/eager.h"
#include "coordinator/plan_table.h"
#include "coordinator/process_sets.h"
#include "coordinator/round_leader.h"
#include "coordinator/round_memory.h"

namespace rueda {

class RoundContributions {
 public:
  // All but the function must outlive this. `may_be_eager`: whether a batch of this many bytes may
  // be sent along; the same on all ranks.
  RoundContributions(RoundMemory& memory, const ProcessSetMembers& members,
                     std::function<bool(std::size_t bytes)> may_be_eager)
      : memory_(memory), members_(members), may_be_eager_(std::move(may_be_eager)) {}

  // Decides whether a new plan sends anything along.
  void prepare(ReplayPlan& plan);
  // Before this rank joins the plan's next round, for which it has all submissions: sends its data.
  void send(const ReplayPlan& plan);
  // Puts the addresses of everything sent along with the round into `sent`. False: it is
  // incomplete, and the round is executed like a negotiated one.
  [[nodiscard]] bool find(const ReplayPlan& plan, std::vector<const std::byte*>& sent) {
    return !plan.sent.empty() &&
           memory_.eager().collect(plan.place.slot, plan.round, plan.sent.back(), sent);
  }
  // The part of `sent` that belongs to one batch of the plan.
  [[nodiscard]] Contributions of_batch(const ReplayPlan& plan, std::size_t batch,
                                       const std::vector<const std::byte*>& sent) const {
    if (memory_.spans_hosts()) return Contributions::combined(sent.front(), plan.sent[batch]);
    return Contributions(sent, plan.sent[batch]);
  }

  // How the data travels between hosts, combined by their leaders. `plans` must outlive the result.
  [[nodiscard]] RoundLeader::Along along(const PlanTable& plans);

 private:
  using Bytes = RoundAgreement::Bytes;

  [[nodiscard]] Bytes collect_here(const ReplayPlan& plan);
  [[nodiscard]] Bytes combine(const ReplayPlan& plan, const std::vector<Bytes>& partial,
                              bool is_result) const;

  RoundMemory& memory_;
  const ProcessSetMembers& members_;
  const std::function<bool(std::size_t bytes)> may_be_eager_;
};

}  // namespace rueda
