// How the ranks agree on a persistent allreduce, and its kinds: one for each place where its tensor
// may lie. Functions throw, as the public ones do.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/persistent_run.h"
#include "coordinator/runtime.h"
#include "rueda/rueda.h"

namespace rueda {

// What a run is made of.
struct PersistentTensor {
  std::shared_ptr<Runtime> runtime;
  TensorView input;
  void* output = nullptr;
  AllreduceOptions options;  // with a name
  // What a run on one host needs, see prepare_host_run().
  HostMembers host;  // those of the set
  std::shared_ptr<ControlRoom> room;
  std::shared_ptr<std::byte[]> copy;

  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(element_count(input.shape)) * size_of(input.dtype);
  }
};

// The ranks of a set agree on a persistent allreduce: collective over the set.
class PersistentAgreement {
 public:
  // Begins.
  PersistentAgreement(std::shared_ptr<Runtime> runtime, const TensorView& input, void* output,
                      const AllreduceOptions& options);
  // Done once all have agreed.
  [[nodiscard]] const Handle& handle() const { return handle_; }
  // Waits for that, and makes the run that suits.
  [[nodiscard]] OwnedPersistentRun make_run();

 private:
  PersistentTensor tensor_;
  Handle handle_;
};

// Takes all memory that a run on one host will need, before the ranks agree on it: what one of them
// lacks is an error of all. Nothing for other runs.
[[nodiscard]] Status prepare_host_run(PersistentTensor& tensor);
// On one host: in the calling thread, through shared memory. `number`: of the operation in its set.
[[nodiscard]] OwnedPersistentRun make_host_run(PersistentTensor tensor, const HostPolicy& policy,
                                               const ProcessSetMembers& members, int number);
// On GPUs with NCCL: enqueued by the calling thread.
[[nodiscard]] OwnedPersistentRun make_device_run(PersistentTensor tensor,
                                                 std::shared_ptr<DeviceReduction> reduction);
// Anywhere: a named operation. `reduction`, of a tensor on a GPU, says why it is not another.
[[nodiscard]] OwnedPersistentRun make_named_run(PersistentTensor tensor,
                                                std::shared_ptr<DeviceReduction> reduction);

// What the kinds have in common: a run is waited for before the next one, and its errors are those
// of all ranks.
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
  // Throws where the last run has not been waited for, however quick it was, and where the world or
  // the process set is over or broken.
  void begin();
  // It has been waited for, and came to this.
  void end(const Status& status = {});
  // By a kind of which a run is not handed in like any other operation: counts, records and draws
  // it all the same. Returns where to count what moves.
  TransferCounters& observe_runs();
  [[nodiscard]] bool is_broken() const { return runtime_->is_broken(set_id_); }
  void fail_if_broken() const;
  // Whether a rank has left the world in good order.
  [[nodiscard]] bool is_departing() const { return !runtime_->epoch().sets().departure().ok(); }
  // The last run needs a rank that has left: it and those to come end with that. Throws.
  [[noreturn]] void fail_departed();
  // The others count on this rank, so the world is over for them, too. Throws.
  [[noreturn]] void give_up(const Status& reason);

 private:
  template <class Draw>
  void draw(const Draw& what);

  std::shared_ptr<Runtime> runtime_;
  int set_id_;
  std::int64_t bytes_;
  Request request_;
  bool to_be_waited_for_ = false;
  bool has_departed_ = false;                         // a rank that a run needed
  std::optional<PersistentRuns::Counters> counters_;  // where runs are observed
  FlightRecorder::Number run_ = 0;
  std::optional<Time> drawn_from_;  // the run, where a timeline was open then
};

}  // namespace rueda
