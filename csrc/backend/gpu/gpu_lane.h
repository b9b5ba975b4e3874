// One lane's side of a GPU: its streams, its communicators, and what has been enqueued on them. A
// lane's operations run one after the other, in the order that all ranks have agreed on.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/callers_communicator.h"
#include "backend/gpu/gpu_event.h"
#include "backend/gpu/gpu_peer_info.h"
#include "backend/gpu/lane_memory.h"
#include "backend/gpu/lane_path.h"
#include "backend/gpu/unfinished_work.h"
#include "backend/nccl/communicator.h"
#include "core/clock.h"
#include "cuda/batch_kernels.h"
#include "cuda/stream.h"
#include "transport/turns.h"

namespace rueda {

// What the lanes of a rank share.
struct Gpu {
  DeviceReference device;
  std::optional<BatchKernels> kernels;  // nothing where this build or GPU has none
  const NcclLibrary* nccl = nullptr;    // null where there is none
  std::string no_nccl;                  // why
  bool may_share = false;               // the option gpu_sharing, and NCCL's own
};

class GpuLane {
 public:
  [[nodiscard]] static Expected<std::unique_ptr<GpuLane>> open(const Gpu& gpu);
  ~GpuLane();
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;

  [[nodiscard]] const Gpu& gpu() const { return gpu_; }
  // On which everything is enqueued but copies back from the host, which it waits for.
  [[nodiscard]] const CudaStream& stream() const { return *stream_; }
  // The same, for what may outlive the lane.
  [[nodiscard]] const std::shared_ptr<const CudaStream>& shared_stream() const { return stream_; }
  // For copies back to the GPU, beside those from it.
  [[nodiscard]] const CudaStream& second_stream() const { return second_stream_; }

  // The order of operations.
  [[nodiscard]] Turns& turns() { return turns_; }
  [[nodiscard]] LaneMemory& memory() { return memory_; }

  // --- How it reaches the other ranks
  [[nodiscard]] LanePath& path() { return path_; }
  [[nodiscard]] const LanePath& path() const { return path_; }
  // This rank's side; makes an id for the communicator where it is the first one.
  [[nodiscard]] GpuPeerInfo peer_info(bool is_first) const;
  // Takes the path that all have chosen, and begins to connect.
  Status settle(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank);
  // Null where all is staged.
  [[nodiscard]] NcclCommunicator* communicator() const { return communicator_.get(); }
  // Of the persistent operations; null before the first one.
  [[nodiscard]] const std::shared_ptr<CallersCommunicator>& callers() const { return callers_; }
  Status connect_callers(const nccl::UniqueId& id, int rank, int size, Duration timeout);

  // --- What has been enqueued and is not done
  // `inputs`: what had to come first.
  using Inputs = UnfinishedWork::Inputs;
  void remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now);
  // Nothing is under way, and no operation is waiting to be enqueued.
  [[nodiscard]] bool is_idle() const { return unfinished_.is_empty() && turns_.is_idle(); }
  // Not ok where something failed, or has taken longer than `timeout` (zero: any time).
  Status watch(Time now, Duration timeout);
  // When to look again though nothing happens; never where nothing can.
  [[nodiscard]] std::optional<Time> next_look(Time now) const;
  // --- Ends what is under way: of all lanes one step, and then the next one, because NCCL's
  // kernels may wait for each other
  // Handles that have completed with it fail with `reason`.
  void give_up(const Status& reason);
  // Both communicators; does not wait for that.
  void begin_abort(const Status& reason);
  // Waits until nothing is under way, but not for ever.
  void end_abort();
  // Both streams; returns whether they are.
  bool wait_until_idle(Time deadline);
  // Waits for what is under way, and leaves the communicator with the others.
  void close(Time deadline);

 private:
  GpuLane(const Gpu& gpu, CudaStream stream, CudaStream second_stream);

  const Gpu& gpu_;
  std::shared_ptr<const CudaStream> stream_;
  CudaStream second_stream_;
  Turns turns_;
  LanePath path_;
  LaneMemory memory_;  // outlives the communicator, with which some of it is registered
  std::unique_ptr<NcclCommunicator> communicator_;
  UnfinishedWork unfinished_;
  std::vector<std::shared_ptr<GpuEvent>> given_up_;
  std::shared_ptr<CallersCommunicator> callers_;
};

}  // namespace rueda
