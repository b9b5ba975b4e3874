#include "coordinator/metrics.h"

#include "core/strings.h"

namespace rueda {

std::map<std::string, std::int64_t> Metrics::values() const {
  std::map<std::string, std::int64_t> values{
      {"tensors_submitted", tensors_submitted.get()},
      {"tensors_completed", tensors_completed.get()},
      {"tensors_failed", tensors_failed.get()},
      {"tensors_fused", tensors_fused.get()},
      {"absent_filled", absent_filled.get()},
      {"gradients_filled", gradients_filled.get()},
      {"bytes_packed", 0},
      {"bytes_staged", 0},
      {"gpu_launches", 0},
      {"nccl_calls", 0},
      {"point_to_point_messages_sent", point_to_point_messages_sent.get()},
      {"point_to_point_bytes_sent", point_to_point_bytes_sent.get()},
      {"table_bytes_sent", table_bytes_sent.get()},
      {"table_requests_sent", table_requests_sent.get()},
      {"table_answers_sent", table_answers_sent.get()},
      {"table_parts_direct", table_parts_direct.get()},
      {"control_messages_sent", control_messages_sent.get()},
      {"control_bytes_sent", control_bytes_sent.get()},
      {"control_messages_dropped", control_messages_dropped.get()},
      {"stall_warnings", stall_warnings.get()},
      {"plans_replayed", plans_replayed.get()},
      {"plans_eager", plans_eager.get()},
      {"plans_cancelled", plans_cancelled.get()},
      {"driven_by_caller", driven_by_caller.get()},
      {"caller_sleeps", caller_sleeps.get()},
      {"sleeps", sleeps.get()},
      {"idle_wakeups", idle_wakeups.get()},
      {"looks", looks.get()},
  };
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    const PerCollective& counted = collectives[i];
    const std::string name(name_of(static_cast<Collective>(i)));
    values[name + "_tensors"] = counted.tensors.get();
    values[name + "_tensor_bytes"] = counted.tensor_bytes.get();
    values[name + "_batches"] = counted.batches.get();
    values[name + "_ring_steps"] = counted.transfers.ring_steps.get();
    values[name + "_messages_sent"] = counted.transfers.messages_sent.get();
    values[name + "_payload_bytes_sent"] = counted.transfers.payload_bytes_sent.get();
    values[name + "_payload_bytes_received"] = counted.transfers.payload_bytes_received.get();
    values["bytes_staged"] += counted.transfers.bytes_staged.get();
    values["gpu_launches"] += counted.transfers.gpu_launches.get();
    values["nccl_calls"] += counted.transfers.nccl_calls.get();
    values["bytes_packed"] += counted.transfers.bytes_packed.get();
    values[name + "_bytes_taken"] = counted.transfers.bytes_taken.get();
    values[name + "_bytes_through_kernel"] = counted.transfers.bytes_through_kernel.get();
    values[name + "_bytes_reduced"] = counted.transfers.bytes_reduced.get();
  }
  const PersistentRuns::Totals runs = persistent_runs.totals();
  values["tensors_submitted"] += runs.started;
  values["tensors_completed"] += runs.completed;
  values["tensors_failed"] += runs.failed;
  values["bytes_packed"] += runs.packed;
  values["allreduce_tensors"] += runs.started;
  values["allreduce_tensor_bytes"] += runs.tensor_bytes;
  values["allreduce_batches"] += runs.started;
  values["allreduce_bytes_reduced"] += runs.reduced;
  values["allreduce_bytes_through_kernel"] += runs.through_kernel;
  return values;
}

}  // namespace rueda
