// A communicator of a process set's persistent operations. Their collectives are enqueued by the
// application's threads, on streams of theirs and in their order, so they must not share one with
// the engine, whose order is that of the negotiation.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "backend/gpu/unfinished_work.h"
#include "backend/nccl/communicator.h"

namespace rueda {

class CallersCommunicator {
 public:
  // Begins to connect; poll() tells when all ranks have come. `timeout`: how long NCCL may take for
  // a call, and the GPU for what it was given; zero for any time.
  [[nodiscard]] static Expected<std::shared_ptr<CallersCommunicator>> start(
      const NcclLibrary& library, DeviceReference device, const nccl::UniqueId& id, int rank,
      int size, Duration timeout);

  // --- For any thread

  // Calls NCCL by `call`, and returns once what that does is in its stream. One thread after the
  // other. Fails with NCCL's error, with ErrorCode::timeout, or with what has ended the
  // communicator meanwhile.
  Status enqueue(const std::function<Status(NcclCommunicator&)>& call);
  // What has been enqueued shall be looked after.
  void remember(std::shared_ptr<GpuEvent> event, UnfinishedWork::Inputs inputs);
  // Whether NCCL is ready; its error, also one that came later or from another rank, or what has
  // ended the communicator.
  [[nodiscard]] Expected<bool> poll() const;
  [[nodiscard]] Duration timeout() const { return timeout_; }

  // --- For whoever has the helm

  // Not ok where something failed, or has taken too long.
  [[nodiscard]] Status watch(Time now);
  // Stops what is under way, so that no stream waits for ever; does not wait itself.
  void abort(const Status& reason);
  // Leaves together with the other ranks.
  void close(Time deadline);

 private:
  CallersCommunicator(std::unique_ptr<NcclCommunicator> communicator, const DeviceFacts& gpu,
                      Duration timeout);
  [[nodiscard]] Expected<bool> poll_locked() const;

  const std::string gpu_;
  const Duration timeout_;
  std::mutex turn_;           // of a call, until NCCL is ready for the next one
  mutable std::mutex mutex_;  // of all below; never held while waiting
  std::unique_ptr<NcclCommunicator> communicator_;
  Status over_;  // why, once it is
  UnfinishedWork unfinished_;
};

}  // namespace rueda
