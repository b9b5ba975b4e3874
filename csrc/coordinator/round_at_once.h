// Rounds of one small collective, without a submission, where all ranks come within a moment: the
// caller copies its tensor to where the others read it, joins the round, sees that it is decided,
// and combines or copies what all have sent along.
#pragma once

#include <cstddef>
#include <cstdint>
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
  RoundAtOnce(RoundMemory& memory, const PlanTable& plans, OpenRounds& open,
              RoundContributions& contributions, const ProcessSetMembers& members, Metrics& metrics)
      : memory_(memory),
        plans_(plans),
        open_(open),
        contributions_(contributions),
        members_(members),
        metrics_(metrics) {}

  // Decides whether it may be tried for a new plan.
  void prepare(ReplayPlan& plan) const;
  // Joins the next round of the call's plan, where this rank waits for no other round. False:
  // nothing has happened, and it is to be submitted. After true, finish() until it is over, or
  // hand_in(), before anything else.
  [[nodiscard]] bool join(const RepeatedCall& call);
  // open: others have not come. done: the result is in the call's output. to_be_executed: all have
  // come, but not with all that makes the result, so that it is to be handed in.
  enum class Is : std::uint8_t { open, done, to_be_executed };
  [[nodiscard]] Is finish(const RepeatedCall& call);
  // The call waits for the others as a submission that has joined.
  void hand_in(const RepeatedCall& call, OpenHandle handle, Time now);

 private:
  RoundMemory& memory_;
  const PlanTable& plans_;
  OpenRounds& open_;
  RoundContributions& contributions_;
  const ProcessSetMembers& members_;
  Metrics& metrics_;
  ReplayPlan* joined_ = nullptr;
  std::vector<const std::byte*> sent_;  // with the round
};

}  // namespace rueda
