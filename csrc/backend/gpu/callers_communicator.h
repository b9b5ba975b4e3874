// The communicator for a process set's persistent operations. The application's threads enqueue
// those collectives on their own streams and in their own order, so they cannot share a
// communicator with the engine, whose order is the negotiated one.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/gpu/unfinished_work.h"
#include "backend/nccl/communicator.h"
#include "cuda/memory.h"

namespace rueda {

class CallersCommunicator {
 public:
  // Begins to connect; poll() says when all ranks have connected. `timeout`: limit for an NCCL
  // call, and for the GPU's work; zero for none.
  [[nodiscard]] static Expected<std::shared_ptr<CallersCommunicator>> start(
      const NcclLibrary& library, DeviceReference device, const nccl::UniqueId& id, int rank,
      int size, Duration timeout);

  // --- Thread-safe; nothing here waits

  // Calls NCCL through `call`. Returns false, without calling, while NCCL is busy with the previous
  // call. The call's work is in its stream once poll() returns true. `is_captured`: into a CUDA
  // graph.
  using Call = std::function<Status(NcclCommunicator&)>;
  Expected<bool> enqueue(const Call& call, bool is_captured);
  // Has watch() look after what has been enqueued.
  void remember(std::shared_ptr<GpuEvent> event, UnfinishedWork::Inputs inputs);
  // Whether NCCL is ready. Returns NCCL's error, including one that came later or from another
  // rank, or whatever ended the communicator.
  [[nodiscard]] Expected<bool> poll() const;
  // What ended the communicator; ok if nothing has.
  [[nodiscard]] Status over() const;
  // Makes watch() return this, for callers that cannot report to the engine.
  void fail(const Status& reason);
  [[nodiscard]] Duration timeout() const { return timeout_; }

  // Keeps memory of a destroyed operation for the next one of the same size, since freeing waits
  // for the whole GPU, which may be waiting for other ranks. Freed with this object.
  void keep(DeviceMemory memory);
  // Returns kept memory of exactly this size, or none.
  [[nodiscard]] DeviceMemory kept(std::size_t bytes);

  // --- For the owner of the progress lock only

  // Not ok if something failed or timed out.
  [[nodiscard]] Status watch(Time now);
  // Stops work in progress, so that no stream waits forever.
  void begin_abort(const Status& reason);
  // Waits for that, within limits (NcclCommunicator::abort()).
  void end_abort() { communicator_->abort(); }
  // Shuts down together with the other ranks.
  void close(Time deadline);

 private:
  CallersCommunicator(std::unique_ptr<NcclCommunicator> communicator, const DeviceFacts& gpu,
                      Duration timeout);
  // False if it had ended before.
  bool end(const Status& reason);
  // Waits for the GPU's work outside graphs; false if it does not complete.
  [[nodiscard]] bool wait_for_work(Time deadline);

  const std::string gpu_;
  const Duration timeout_;
  const std::unique_ptr<NcclCommunicator> communicator_;
  mutable std::mutex calls_;  // held while the communicator is used; before `mutex_`
  mutable std::mutex mutex_;  // guards the members below; never held while waiting
  Status over_;               // why it ended
  Status failure_;            // for watch() to return
  UnfinishedWork unfinished_;
  std::vector<DeviceMemory> kept_;
};

}  // namespace rueda
