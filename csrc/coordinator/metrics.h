// What the engine counts. A Counter is written by the owner of the progress lock, a SharedCounter
// by anyone; anyone may read at any time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "coordinator/persistent_runs.h"
#include "core/counter.h"
#include "plan/request.h"
#include "transport/transfer_counters.h"

namespace rueda {

struct Metrics {
  // Per collective, named e.g. "allreduce_batches".
  struct PerCollective {
    Counter tensors;       // that took part on this rank and have been agreed on
    Counter tensor_bytes;  // of their inputs
    Counter batches;       // executions: several tensors where they were fused
    TransferCounters transfers;
  };
  std::array<PerCollective, 6> collectives;  // allreduce to barrier
  PersistentRuns persistent_runs;            // allreduces that count as the others do

  Counter tensors_submitted;
  Counter tensors_completed;
  Counter tensors_failed;
  Counter tensors_fused;           // that shared a batch with another
  Counter absent_filled;           // in which this rank, having joined, took part with the identity
  SharedCounter gradients_filled;  // that an optimizer had to make up, as zeros
  Counter point_to_point_messages_sent;  // handed in by the application, with their bytes
  Counter point_to_point_bytes_sent;
  Counter table_bytes_sent;     // of requests and answers, but for what travels with their headers
  Counter table_requests_sent;  // to owners of parts, and by owners to replicas
  Counter table_answers_sent;
  SharedCounter table_parts_direct;  // worked on in shared memory, instead of a request
  Counter control_messages_sent;
  Counter control_bytes_sent;
  Counter control_messages_dropped;  // that nothing here could make sense of, or wants any more
  Counter stall_warnings;
  Counter plans_replayed;    // batches, or groups of them, executed without negotiation
  Counter plans_eager;       // of those: all was sent along with the ranks' readiness
  Counter plans_cancelled;   // by this rank
  Counter driven_by_caller;  // waits in which the caller drove the engine
  Counter caller_sleeps;     // of callers that drove
  Counter sleeps;            // of the progress thread
  Counter idle_wakeups;      // after which there was nothing to do
  Counter looks;             // of whoever drives, for something to do

  [[nodiscard]] PerCollective& of(Collective collective) {
    if (collective == Collective::persistent_allreduce) collective = Collective::allreduce;
    return collectives.at(static_cast<std::size_t>(collective));
  }
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;
};

}  // namespace rueda
