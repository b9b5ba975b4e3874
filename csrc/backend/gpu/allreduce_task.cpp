#include "backend/gpu/allreduce_task.h"

#include <utility>

#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/packing.h"

namespace rueda {

AllreduceTask::AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks)
    : reduction_(reduction), pieces_(std::move(pieces)), ranks_(ranks) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  takes_part_ = contributes(pieces_);
}

bool AllreduceTask::suits_nccl(const GpuLane& gpu) const {
  return nccl_can_take_part(reduction_, ranks_, gpu.all_have_kernels());
}

// On all ranks or on none, see FusionBuffer: those that have joined need the buffer for zeros.
bool AllreduceTask::lies_well() const {
  return pieces_.size() == 1 && reduction_.contributors == ranks_ && !reduction_.wire &&
         pieces_.front().input != nullptr && pieces_.front().output != nullptr;
}

Status AllreduceTask::reserve(GpuLane& gpu) {
  return count_ == 0 || lies_well() ? Status() : gpu.reserve(bytes_of(count_, packed()));
}

Status AllreduceTask::enqueue(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  const NcclCombination how = *nccl_combination(on_the_wire(reduction_), ranks_);
  const StreamHandle stream = gpu.stream().handle();
  const auto count = static_cast<std::uint64_t>(count_);
  lane.counters->nccl_calls.add(1);
  if (lies_well()) {
    const Piece& only = pieces_.front();
    return gpu.communicator()->allreduce(only.input, only.output, count, how, stream);
  }
  const auto buffer = gpu.buffer();
  if (!buffer) return buffer.status();
  buffer_ = *buffer;
  const Packing packing{reduction_.dtype, packed(), reduction_.wire ? reduction_.prescale : 1.0};
  Status status = takes_part_
                      ? pack(gpu, lane, pieces_, packing, buffer_)
                      : fill_bytes(gpu.stream(), buffer_, std::byte{}, bytes_of(count_, packed()));
  if (status.ok()) status = gpu.communicator()->allreduce(buffer_, buffer_, count, how, stream);
  return status;
}

Status AllreduceTask::conclude(GpuLane& gpu, const Lane& lane) {
  if (buffer_ == nullptr) return {};
  return unpack(gpu, lane, pieces_,
                {reduction_.dtype, packed(), reduction_.wire ? reduction_.postscale : 1.0},
                buffer_);
}

Expected<bool> AllreduceTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  if (!staged_) staged_.emplace(reduction_, pieces_);
  return staged_->advance(gpu, lane, host);
}

}  // namespace rueda
