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
  return nccl_can_take_part(reduction_, ranks_, gpu.all_have_kernels());
}

// On all ranks or on none, see FusionBuffer: those that have joined need the buffer for zeros.
bool AllreduceTask::lies_well() const {
  return pieces_.size() == 1 && reduction_.contributors == ranks_ && !reduction_.wire &&
         pieces_.front().input != nullptr && pieces_.front().output != nullptr;
}

// The buffer has the same size on all ranks, which all make room or none.
std::unique_ptr<Operation> AllreduceTask::prepare(GpuLane& gpu, const Lane& lane, Backend& host) {
  if (count_ == 0 || lies_well() || gpu.has_room(packed_bytes_)) return nullptr;
  return agreement_.ask(lane, host, gpu.reserve(packed_bytes_));
}

Status AllreduceTask::reserve(GpuLane& gpu, const Lane& lane) {
  if (Status status = agreement_.verdict(lane); !status.ok()) {
    failed_everywhere_ = true;
    gpu.give_back_buffer();
    return status;
  }
  return gpu.register_buffer();
}

Status AllreduceTask::enqueue(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  lane.counters->nccl_calls.add(1);
  if (lies_well()) return enqueue_where_it_lies(gpu, lane);
  buffer_ = gpu.buffer();
  Status status =
      takes_part_ ? pack(gpu, lane, pieces_, {reduction_.dtype, packed(), plan_.before}, buffer_)
                  : fill_bytes(gpu.stream(), buffer_, std::byte{}, packed_bytes_);
  if (!status.ok()) return status;
  return gpu.communicator()->allreduce(buffer_, buffer_, packed_bytes_ / size_of(packed()),
                                       plan_.how, gpu.stream().handle());
}

Status AllreduceTask::enqueue_where_it_lies(GpuLane& gpu, const Lane& lane) {
  const Piece& only = pieces_.front();
  Status status =
      scale(gpu, lane, only.input, only.output, only.count, reduction_.dtype, plan_.before);
  if (!status.ok()) return status;
  const std::byte* const input = plan_.before == 1.0 ? only.input : only.output;
  return gpu.communicator()->allreduce(input, only.output, static_cast<std::uint64_t>(only.count),
                                       plan_.how, gpu.stream().handle());
}

Status AllreduceTask::conclude(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  if (buffer_ == nullptr) {
    std::byte* const output = pieces_.front().output;
    return scale(gpu, lane, output, output, count_, reduction_.dtype, plan_.after);
  }
  return unpack(gpu, lane, pieces_, {reduction_.dtype, packed(), plan_.after}, buffer_);
}

Expected<bool> AllreduceTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  if (!staged_) staged_.emplace(reduction_, pieces_);
  return staged_->advance(gpu, lane, host);
}

}  // namespace rueda
