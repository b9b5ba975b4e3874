// Rounds of one small allreduce, without a submission, where all ranks come within a moment: the
// caller copies its tensor to where the others read it, joins the round, sees that it is decided,
// and combines what all have sent along.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/metrics.h"
#include "coordinator/plan_table.h"
#include "coordinator/process_sets.h"
#include "coordinator/repeated_call.h"
#include "coordinator/round_contributions.h"
#include "coordinator/round_memory.h"

namespace rueda {

class RoundAtOnce {
 public:
  // All must outlive this.
  RoundAtOnce(RoundMemory& memory, const PlanTable& plans, RoundContributions& contributions,
              const ProcessSetMembers& members, Metrics& metrics)
      : memory_(memory),
        plans_(plans),
        contributions_(contributions),
        members_(members),
        metrics_(metrics) {}

  // Decides whether it may be tried for a new plan.
  void prepare(ReplayPlan& plan) const;
  // Joins the next round of the call's plan. This rank waits for no other round. False: nothing
  // has happened.
  [[nodiscard]] bool join(const RepeatedCall& call);
  // After that: the tensor's bytes once the result is in the call's output. Nothing while others
  // are missing, and where one has sent nothing along, so that the round has to be executed.
  [[nodiscard]] std::optional<std::size_t> finish(const RepeatedCall& call);
  // The call waits for the others as a submission. Returns its plan.
  [[nodiscard]] ReplayPlan& hand_in(const RepeatedCall& call, OpenHandle handle, Time now);

 private:
  RoundMemory& memory_;
  const PlanTable& plans_;
  RoundContributions& contributions_;
  const ProcessSetMembers& members_;
  Metrics& metrics_;
  ReplayPlan* joined_ = nullptr;
  std::vector<const std::byte*> sent_;  // with the round
};

}  // namespace rueda
