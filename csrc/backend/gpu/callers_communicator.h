// A communicator of a process set's persistent operations. Their collectives are enqueued by the
// application's threads, on streams of theirs and in their order, so they must not share one with
// the engine, whose order is that of the negotiation.
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
  // Begins to connect; poll() tells when all ranks have come. `timeout`: how long NCCL may take for
  // a call, and the GPU for what it was given; zero for any time.
  [[nodiscard]] static Expected<std::shared_ptr<CallersCommunicator>> start(
      const NcclLibrary& library, DeviceReference device, const nccl::UniqueId& id, int rank,
      int size, Duration timeout);

  // --- For any thread. None of it waits.

  // Calls NCCL by `call`; false, without a call, where NCCL is busy with the last one. What the
  // call does is in its stream once poll() says true. `is_captured`: in a CUDA graph.
  using Call = std::function<Status(NcclCommunicator&)>;
  Expected<bool> enqueue(const Call& call, bool is_captured);
  // What has been enqueued shall be looked after.
  void remember(std::shared_ptr<GpuEvent> event, UnfinishedWork::Inputs inputs);
  // Whether NCCL is ready; its error, also one that came later or from another rank, or what has
  // ended the communicator.
  [[nodiscard]] Expected<bool> poll() const;
  // What has ended the communicator; ok while nothing has.
  [[nodiscard]] Status over() const;
  // watch() will return this: for whoever cannot tell the engine.
  void fail(const Status& reason);
  [[nodiscard]] Duration timeout() const { return timeout_; }

  // Memory of an operation that has gone, for the next one of its size, because freeing waits for
  // all of the GPU, which may wait for other ranks. Freed with this.
  void keep(DeviceMemory memory);
  // No memory where there is none of exactly this size.
  [[nodiscard]] DeviceMemory kept(std::size_t bytes);

  // --- For the owner of the progress lock

  // Not ok where something failed, or has taken too long.
  [[nodiscard]] Status watch(Time now);
  // Stops what is under way, so that no stream waits for ever.
  void begin_abort(const Status& reason);
  // Waits for that for a while (NcclCommunicator::abort()).
  void end_abort() { communicator_->abort(); }
  // Leaves together with the other ranks.
  void close(Time deadline);

 private:
  CallersCommunicator(std::unique_ptr<NcclCommunicator> communicator, const DeviceFacts& gpu,
                      Duration timeout);
  // False where it was over before.
  bool end(const Status& reason);
  // Until the GPU has done what it was given, outside of graphs; false where that cannot be had.
  [[nodiscard]] bool wait_for_work(Time deadline);

  const std::string gpu_;
  const Duration timeout_;
  const std::unique_ptr<NcclCommunicator> communicator_;
  mutable std::mutex calls_;  // held while the communicator is used; before `mutex_`
  mutable std::mutex mutex_;  // of all below; never held while waiting
  Status over_;               // why, once it is
  Status failure_;            // that watch() has to return
  UnfinishedWork unfinished_;
  std::vector<DeviceMemory> kept_;
};

}  // namespace rueda
