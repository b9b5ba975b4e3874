// A batch, which is executed as one: operations that all ranks of a process set have agreed on.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/metrics.h"
#include "coordinator/submission.h"
#include "coordinator/timeline.h"
#include "onehost/host_group.h"
#include "plan/leaf_tree.h"
#include "plan/response.h"

namespace rueda {

// What all batches of a process set need for execution; owned by the engine and used only by the
// owner of the progress lock.
struct ExecutionContext {
  Backend* backend;
  DeviceBackend* devices;
  Metrics* metrics;
  Timeline* timeline;
  FlightRecorder* recorder;
  HostMembers host;                // members of the set that share memory with this rank
  bool averages_over_all = false;  // including ranks that have joined
  int set_id = 0;

  // Completes a submission of the set, and counts it.
  void complete(const Submission& submission, Status status, OperationOutput&& output = {}) const {
    (status.ok() ? metrics->tensors_completed : metrics->tensors_failed).add(1);
    submission.handle->complete(std::move(status), std::move(output));
  }
  // A barrier ends once all ranks have reached it.
  void complete_barrier(const Submission& submission) const {
    Metrics::PerCollective& counted = metrics->of(Collective::barrier);
    counted.tensors.add(1);
    counted.batches.add(1);
    complete(submission, {});
  }
};

struct BatchMember {
  std::shared_ptr<const Response> response;
  // Empty if this rank has joined: it contributes the identity.
  std::optional<Submission> submission;
  int persistent = -1;  // persistent operation: its number within the set
};

// How the elements of a batch that `ranks` have agreed on are combined. `averages_over_all`: an
// average also counts ranks that have joined.
[[nodiscard]] inline Reduction reduction_of(const Response& agreed, int ranks,
                                            bool averages_over_all) {
  const Request& request = agreed.request;
  const int present = ranks - static_cast<int>(agreed.absent.size());
  const bool has_leaves = !request.leaf_ranks.empty();
  return {.dtype = request.dtype,
          .op = request.op,
          .contributors = present,
          .prescale = request.prescale,
          .postscale = request.postscale,
          .divisor = has_leaves          ? static_cast<int>(request.leaf_ranks.size())
                     : averages_over_all ? ranks
                                         : present,
          .wire = request.wire,
          .compression = request.compression,
          .leaves = has_leaves ? std::make_shared<LeafPlan>(plan_leaves(request.leaf_ranks, ranks))
                               : nullptr};
}

}  // namespace rueda
