// One lane's side of a GPU: its stream, its communicator, its buffers. A lane's operations run one
// after the other, in the order that all ranks have agreed on.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/callers_communicator.h"
#include "backend/gpu/fusion_buffer.h"
#include "backend/gpu/gpu_event.h"
#include "backend/gpu/gpu_peer_info.h"
#include "backend/gpu/staging_memory.h"
#include "backend/gpu/unfinished_work.h"
#include "backend/nccl/communicator.h"
#include "core/clock.h"
#include "cuda/batch_kernels.h"
#include "cuda/stream.h"

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

  // --- The order of operations
  [[nodiscard]] std::uint64_t line_up() { return next_ticket_++; }
  [[nodiscard]] bool is_turn_of(std::uint64_t ticket) const { return serving_ == ticket; }
  void end_turn() { ++serving_; }

  // --- What the ranks have agreed on
  [[nodiscard]] bool has_road() const { return choice_.has_value(); }
  [[nodiscard]] GpuPath path() const { return choice_->path; }
  [[nodiscard]] bool all_have_kernels() const { return all_have_kernels_; }
  // This rank's side; makes an id for the communicator where it is the first one.
  [[nodiscard]] GpuPeerInfo card(bool is_first) const;
  // Takes the path that all have chosen, and begins to connect.
  Status settle(RoadChoice choice, std::span<const GpuPeerInfo> cards, int rank);
  // Once per process set, by its first rank: that an operation goes through the host's memory
  // though NCCL is there.
  void warn_of_staging(const Lane& lane);
  [[nodiscard]] const std::string& why_not_nccl() const { return choice_->why_not_nccl; }
  // Null where all is staged.
  [[nodiscard]] NcclCommunicator* communicator() const { return communicator_.get(); }
  // Of the persistent operations; null before the first one.
  [[nodiscard]] const std::shared_ptr<CallersCommunicator>& callers() const { return callers_; }
  Status connect_callers(const nccl::UniqueId& id, int rank, int size, Duration timeout);

  // --- Memory, kept from operation to operation. What has been outgrown is freed with the lane:
  // freeing waits for the GPU, which may wait for other ranks.
  // Of the GPU, for NCCL; used by one operation at a time, which leaves it in the order of
  // stream(). reserve() makes room, and register_buffer() tells NCCL of it once all ranks have it;
  // buffer() is it once the communicator is ready.
  [[nodiscard]] bool has_room(std::size_t bytes) const { return buffer_.has_room(bytes); }
  Status reserve(std::size_t bytes) { return buffer_.reserve(bytes, *gpu_.nccl, gpu_.device); }
  void give_back_buffer() { buffer_.give_back(); }
  Status register_buffer() { return buffer_.register_with(*communicator_); }
  [[nodiscard]] std::byte* buffer() const { return buffer_.data(); }
  // Of the host.
  Expected<StagingMemory*> staging(std::size_t slot, std::size_t bytes);
  // How many of the first slots all ranks have, as large as an allreduce needs them.
  [[nodiscard]] std::size_t agreed_slots() const { return agreed_slots_; }
  void agree_on_slots(std::size_t slots) { agreed_slots_ = std::max(agreed_slots_, slots); }
  // A result could not be allocated: for the operation that was to write it.
  void note_shortage(const Status& why) { shortage_ = why; }
  [[nodiscard]] Status take_shortage() { return std::exchange(shortage_, Status()); }

  // --- What has been enqueued and is not done
  // `inputs`: what had to come first.
  using Inputs = UnfinishedWork::Inputs;
  void remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now);
  // Nothing is under way, and no operation is waiting to be enqueued.
  [[nodiscard]] bool is_idle() const { return unfinished_.is_empty() && serving_ == next_ticket_; }
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
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::optional<RoadChoice> choice_;
  bool all_have_kernels_ = false;
  bool has_warned_ = false;
  FusionBuffer buffer_;  // outlives the communicator, with which it is registered
  std::unique_ptr<NcclCommunicator> communicator_;
  std::map<std::size_t, StagingMemory> staging_;
  std::vector<StagingMemory> outgrown_staging_;
  std::size_t agreed_slots_ = 0;
  Status shortage_;
  UnfinishedWork unfinished_;
  std::vector<std::shared_ptr<GpuEvent>> given_up_;
  std::shared_ptr<CallersCommunicator> callers_;
};

}  // namespace rueda
