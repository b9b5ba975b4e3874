#include "backend/gpu/allreduce_task.h"

#include <utility>

#include "backend/gpu/packing.h"

namespace rueda {

AllreduceTask::AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks)
    : reduction_(reduction),
      pieces_(std::move(pieces)),
      ranks_(ranks),
      plan_(nccl_plan(reduction).value_or(NcclPlan())) {
  for (const Piece& piece : pieces_) {
    count_ += piece.count;
    packed_bytes_ += padded_bytes_of(piece.count, packed());
  }
  takes_part_ = contributes(pieces_);
}

bool AllreduceTask::suits_nccl(const GpuLane& gpu) const {
  return nccl_can_take_part(reduction_, ranks_, gpu.path().all_have_kernels());
}

// On all ranks or none, see FusionBuffer: a rank that has joined needs the buffer for its zeros.
bool AllreduceTask::lies_well() const {
  return pieces_.size() == 1 && reduction_.contributors == ranks_ && !reduction_.wire &&
         pieces_.front().input != nullptr && pieces_.front().output != nullptr;
}

// The buffer and the slots have the same size on all ranks, so all of them make room or none does.
std::optional<Status> AllreduceTask::reserve(GpuLane& gpu, Way way) {
  if (way == Way::staged) {
    staged_.emplace(reduction_, pieces_);
    if (staged_->slots() <= gpu.memory().agreed_slots()) return std::nullopt;
    return staged_->reserve(gpu);
  }
  if (count_ == 0 || lies_well() || gpu.memory().fusion().has_room(packed_bytes_))
    return std::nullopt;
  return gpu.memory().fusion().reserve(packed_bytes_, *gpu.gpu().nccl, gpu.gpu().device);
}

Status AllreduceTask::keep(GpuLane& gpu, Way way) {
  if (way == Way::nccl) return gpu.memory().fusion().register_with(*gpu.communicator());
  gpu.memory().agree_on_slots(staged_->slots());
  return {};
}

Status AllreduceTask::precede(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  const Piece& first = pieces_.front();
  if (lies_well())
    return scale(gpu, lane, first.input, first.output, count_, reduction_.dtype, plan_.before);
  if (!takes_part_)
    return fill_bytes(gpu.stream(), gpu.memory().fusion().data(), std::byte{}, packed_bytes_);
  return pack(gpu, lane, pieces_, {reduction_.dtype, packed(), plan_.before},
              gpu.memory().fusion().data());
}

Status AllreduceTask::enqueue(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  lane.counters->nccl_calls.add(1);
  const StreamHandle stream = gpu.stream().handle();
  if (!lies_well()) {
    std::byte* const buffer = gpu.memory().fusion().data();
    return gpu.communicator()->allreduce(buffer, buffer, packed_bytes_ / size_of(packed()),
                                         plan_.how, stream);
  }
  const Piece& only = pieces_.front();
  const std::byte* const input = plan_.before == 1.0 ? only.input : only.output;
  return gpu.communicator()->allreduce(input, only.output, static_cast<std::uint64_t>(count_),
                                       plan_.how, stream);
}

Status AllreduceTask::conclude(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  if (lies_well()) {
    std::byte* const output = pieces_.front().output;
    return scale(gpu, lane, output, output, count_, reduction_.dtype, plan_.after);
  }
  return unpack(gpu, lane, pieces_, {reduction_.dtype, packed(), plan_.after},
                gpu.memory().fusion().data());
}

Expected<bool> AllreduceTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  return staged_->advance(gpu, lane, host);
}

}  // namespace rueda
