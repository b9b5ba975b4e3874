// Counters of the engine. A Counter is written by the owner of the progress lock, a SharedCounter
// by any thread; any thread may read at any time.
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
    Counter tensors;       // agreed on, with this rank taking part
    Counter tensor_bytes;  // of their inputs
    Counter batches;       // executions; a fused one has several tensors
    TransferCounters transfers;
  };
  std::array<PerCollective, 6> collectives;  // allreduce to barrier
  PersistentRuns persistent_runs;            // allreduces, counted like the others

  Counter tensors_submitted;
  Counter tensors_completed;
  Counter tensors_failed;
  Counter tensors_fused;                 // shared a batch with another
  Counter absent_filled;                 // took part with the identity, as this rank had joined
  SharedCounter gradients_filled;        // missing ones that an optimizer replaced by zeros
  Counter point_to_point_messages_sent;  // submitted by the application
  Counter point_to_point_bytes_sent;
  Counter table_bytes_sent;     // of requests and answers, except what travels with their headers
  Counter table_requests_sent;  // to owners of shards, and by owners to replicas
  Counter table_answers_sent;
  SharedCounter table_parts_direct;  // accessed in shared memory, instead of by request
  Counter control_messages_sent;
  Counter control_bytes_sent;
  Counter control_messages_dropped;  // malformed, or no longer wanted
  Counter stall_warnings;
  Counter plans_replayed;    // batches, or groups of them, executed without negotiation
  Counter plans_eager;       // of those: all data was sent along with the ranks' readiness
  Counter plans_cancelled;   // by this rank
  Counter driven_by_caller;  // waits in which the caller drove the engine
  Counter caller_sleeps;     // of callers that drove the engine
  Counter sleeps;            // of the progress thread
  Counter idle_wakeups;      // with nothing to do
  Counter looks;             // checks by the driving thread for something to do

  [[nodiscard]] PerCollective& of(Collective collective) {
    if (collective == Collective::persistent_allreduce) collective = Collective::allreduce;
    return collectives.at(static_cast<std::size_t>(collective));
  }
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;
};

}  // namespace rueda
