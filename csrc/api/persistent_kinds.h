// How the ranks agree on a persistent allreduce, and its kinds: one for each place where its tensor
// may be. Functions throw, like the public ones.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/persistent_run.h"
#include "coordinator/runtime.h"
#include "rueda/rueda.h"

namespace rueda {

// What a run is created from.
struct PersistentTensor {
  std::shared_ptr<Runtime> runtime;
  TensorView input;
  void* output = nullptr;
  AllreduceOptions options;  // with a name
  // For a run on one host, see prepare_host_run().
  HostMembers host;  // members of the set
  std::shared_ptr<ControlRoom> room;
  std::shared_ptr<std::byte[]> copy;

  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(element_count(input.shape)) * size_of(input.dtype);
  }
};

// The ranks of a set agree on a persistent allreduce: collective over the set.
class PersistentAgreement {
 public:
  // Begins the agreement.
  PersistentAgreement(std::shared_ptr<Runtime> runtime, const TensorView& input, void* output,
                      const AllreduceOptions& options);
  // Done once all have agreed.
  [[nodiscard]] const Handle& handle() const { return handle_; }
  // Waits for the agreement, and creates the suitable kind of run.
  [[nodiscard]] OwnedPersistentRun make_run();

 private:
  PersistentTensor tensor_;
  Handle handle_;
};

// Reserves all memory that a run on one host will need, before the ranks agree on it: if one rank
// lacks memory, it is an error on all. Does nothing for other runs.
[[nodiscard]] Status prepare_host_run(PersistentTensor& tensor);
// On one host: in the calling thread, through shared memory. `number`: the operation's in its set.
[[nodiscard]] OwnedPersistentRun make_host_run(PersistentTensor tensor, const HostPolicy& policy,
                                               const ProcessSetMembers& members, int number);
// On GPUs with NCCL: enqueued by the calling thread.
[[nodiscard]] OwnedPersistentRun make_device_run(PersistentTensor tensor,
                                                 std::shared_ptr<DeviceReduction> reduction);
// Anywhere: a named operation. `reduction`, for a tensor on a GPU, says why it is not a device run.
[[nodiscard]] OwnedPersistentRun make_named_run(PersistentTensor tensor,
                                                std::shared_ptr<DeviceReduction> reduction);

// What the kinds have in common: a run must be waited for before the next one, and its errors are
// errors on all ranks.
class PersistentLife {
 public:
  explicit PersistentLife(const PersistentTensor& tensor)
      : runtime_(tensor.runtime),
        set_id_(tensor.options.process_set.id),
        bytes_(static_cast<std::int64_t>(tensor.bytes())) {
    request_.name = tensor.options.name;
    request_.collective = Collective::persistent_allreduce;
    request_.dtype = tensor.input.dtype;
    request_.shape = tensor.input.shape;
    request_.op = tensor.options.op;
  }

  [[nodiscard]] Runtime& runtime() const { return *runtime_; }
  [[nodiscard]] const std::string& name() const { return request_.name; }
  // Throws if the last run has not been waited for, however fast it was, or if the world or the
  // process set has ended or is broken.
  void begin();
  // The run has been waited for, with this result.
  void end(const Status& status = {});
  // For a kind whose runs are not submitted like other operations: counts, records and draws them
  // all the same. Returns the counters for transfers.
  TransferCounters& observe_runs();
  // Whether a run has begun and has not been waited for.
  [[nodiscard]] bool is_in_run() const { return to_be_waited_for_; }
  [[nodiscard]] bool is_broken() const { return runtime_->is_broken(set_id_); }
  void fail_if_broken() const;
  // Whether a rank has left the world cleanly.
  [[nodiscard]] bool is_departing() const { return !runtime_->epoch().sets().departure().ok(); }
  // The last run needs a rank that has left: this run and all future ones fail with that. Throws.
  [[noreturn]] void fail_departed();
  // The other ranks rely on this one, so the world ends for them, too. Throws.
  [[noreturn]] void give_up(const Status& reason);

 private:
  template <class Draw>
  void draw(const Draw& what);

  std::shared_ptr<Runtime> runtime_;
  int set_id_;
  std::int64_t bytes_;
  Request request_;
  bool to_be_waited_for_ = false;
  bool has_departed_ = false;                         // a rank that a run needed has left
  std::optional<PersistentRuns::Counters> counters_;  // if runs are observed
  FlightRecorder::Number run_ = 0;
  std::optional<Time> drawn_from_;  // start of the run, if a timeline was open then
};

}  // namespace rueda
