// Rounds of one small collective without a submission, if all ranks arrive within a moment: the
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

  // Decides whether this may be tried for a new plan.
  void prepare(ReplayPlan& plan) const;
  // Joins the next round of the call's plan, if this rank waits for no other round. False: nothing
  // has happened, and the call must be submitted. After true, call finish() until it is no longer
  // open, or hand_in(), before anything else.
  [[nodiscard]] bool join(const RepeatedCall& call);
  // open: other ranks have not joined. done: the result is in the call's output. to_be_executed:
  // all have joined, but not all data was sent along, so that the call must be handed in.
  enum class Is : std::uint8_t { open, done, to_be_executed };
  [[nodiscard]] Is finish(const RepeatedCall& call);
  // The call goes on waiting as a submission that has joined.
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
