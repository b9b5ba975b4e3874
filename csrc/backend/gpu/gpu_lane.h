// The GPU side of a lane: its streams, its communicators, and the work enqueued on them. A lane's
// operations run one after the other, in the order that all ranks have agreed on.
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

// State shared by the lanes of a rank.
struct Gpu {
  DeviceReference device;
  std::optional<BatchKernels> kernels;  // nullopt if this build or GPU has none
  const NcclLibrary* nccl = nullptr;    // null if not available
  std::string no_nccl;                  // why it is not
  bool may_share = false;               // the option gpu_sharing, and NCCL's own
};

class GpuLane {
 public:
  [[nodiscard]] static Expected<std::unique_ptr<GpuLane>> open(const Gpu& gpu);
  ~GpuLane();
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;

  [[nodiscard]] const Gpu& gpu() const { return gpu_; }
  // For all work except copies back from the host; it waits for those.
  [[nodiscard]] const CudaStream& stream() const { return *stream_; }
  // The same, for users that may outlive the lane.
  [[nodiscard]] const std::shared_ptr<const CudaStream>& shared_stream() const { return stream_; }
  // For copies back to the GPU, concurrent with copies from it.
  [[nodiscard]] const CudaStream& second_stream() const { return second_stream_; }

  // The order of operations.
  [[nodiscard]] Turns& turns() { return turns_; }
  [[nodiscard]] LaneMemory& memory() { return memory_; }

  // --- The path to the other ranks
  [[nodiscard]] LanePath& path() { return path_; }
  [[nodiscard]] const LanePath& path() const { return path_; }
  // What this rank tells its peers; the first rank also creates the communicator's id.
  [[nodiscard]] GpuPeerInfo peer_info(bool is_first) const;
  // Adopts the path that all ranks have chosen, and begins to connect.
  Status settle(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank);
  // Null if everything is staged.
  [[nodiscard]] NcclCommunicator* communicator() const { return communicator_.get(); }
  // For persistent operations; null before the first one.
  [[nodiscard]] const std::shared_ptr<CallersCommunicator>& callers() const { return callers_; }
  Status connect_callers(const nccl::UniqueId& id, int rank, int size, Duration timeout);

  // --- Work enqueued and not done
  // `inputs`: events that this work follows.
  using Inputs = UnfinishedWork::Inputs;
  void remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now);
  // Nothing is in progress, and no operation is waiting to be enqueued.
  [[nodiscard]] bool is_idle() const { return unfinished_.is_empty() && turns_.is_idle(); }
  // Not ok if something failed or took longer than `timeout` (zero: no limit).
  Status watch(Time now, Duration timeout);
  // When to look again even if nothing happens; nullopt if that is not needed.
  [[nodiscard]] std::optional<Time> next_look(Time now) const;
  // --- Ending what is in progress. Take each step for all lanes before the next one, since NCCL's
  // kernels may wait for each other.
  // Handles that have completed with this work fail with `reason`.
  void give_up(const Status& reason);
  // Both communicators. Does not wait.
  void begin_abort(const Status& reason);
  // Waits, within limits, until nothing is in progress.
  void end_abort();
  // Waits for both streams; returns whether they are idle.
  bool wait_until_idle(Time deadline);
  // Waits for work in progress, then closes the communicator with the other ranks.
  void close(Time deadline);

 private:
  GpuLane(const Gpu& gpu, CudaStream stream, CudaStream second_stream);

  const Gpu& gpu_;
  std::shared_ptr<const CudaStream> stream_;
  CudaStream second_stream_;
  Turns turns_;
  LanePath path_;
  LaneMemory memory_;  // must outlive the communicator, with which some of it is registered
  std::unique_ptr<NcclCommunicator> communicator_;
  UnfinishedWork unfinished_;
  std::vector<std::shared_ptr<GpuEvent>> given_up_;
  std::shared_ptr<CallersCommunicator> callers_;
};

}  // namespace rueda
