#include "backend/gpu/allreduce_task.h"

#include <utility>

#include "backend/gpu/hierarchical_allreduce.h"
#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/packing.h"
#include "backend/gpu/staged_allreduce.h"

namespace rueda {

AllreduceTask::AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks,
                             std::int64_t part_bytes)
    : reduction_(reduction), pieces_(std::move(pieces)), ranks_(ranks), part_bytes_(part_bytes) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  takes_part_ = contributes(pieces_);
}

bool AllreduceTask::suits_nccl(const GpuLane& gpu) const {
  return nccl_can_take_part(reduction_, on_the_wire(reduction_), ranks_, gpu.all_have_kernels());
}

bool AllreduceTask::goes_hierarchically(const GpuLane& gpu) const {
  return HierarchicalAllreduce::suits(gpu, reduction_, ranks_);
}

Status AllreduceTask::enqueue(GpuLane& gpu, const Lane& lane) {
  if (count_ == 0) return {};
  const NcclCombination how = *nccl_combination(on_the_wire(reduction_), ranks_);
  const StreamHandle stream = gpu.stream().handle();
  const auto count = static_cast<std::uint64_t>(count_);
  lane.counters->nccl_calls.add(1);
  const Piece& first = pieces_.front();
  // On all ranks or on none, see FusionBuffer: those that have joined need the buffer for zeros.
  const bool lies_well = pieces_.size() == 1 && reduction_.contributors == ranks_ &&
                         !reduction_.wire && first.input != nullptr && first.output != nullptr;
  if (lies_well) {
    return gpu.communicator()->allreduce(first.input, first.output, count, how, stream);
  }
  const DataType packed = reduction_.wire.value_or(reduction_.dtype);
  auto buffer = gpu.buffer(bytes_of(count_, packed));
  if (!buffer) return buffer.status();
  buffer_ = *buffer;
  const Packing packing{reduction_.dtype, packed, reduction_.wire ? reduction_.prescale : 1.0};
  Status status = takes_part_
                      ? pack(gpu, lane, pieces_, packing, buffer_)
                      : fill_bytes(gpu.stream(), buffer_, std::byte{}, bytes_of(count_, packed));
  if (status) status = gpu.communicator()->allreduce(buffer_, buffer_, count, how, stream);
  return status;
}

Status AllreduceTask::conclude(GpuLane& gpu, const Lane& lane) {
  if (buffer_ == nullptr) return {};
  const DataType packed = reduction_.wire.value_or(reduction_.dtype);
  return unpack(gpu, lane, pieces_,
                {reduction_.dtype, packed, reduction_.wire ? reduction_.postscale : 1.0}, buffer_);
}

Expected<bool> AllreduceTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  if (!host_work_) {
    if (goes_hierarchically(gpu)) {
      host_work_ = std::make_unique<HierarchicalAllreduce>(reduction_, pieces_, part_bytes_);
    } else {
      host_work_ = std::make_unique<StagedAllreduce>(reduction_, pieces_);
    }
  }
  return host_work_->advance(gpu, lane, host);
}

}  // namespace rueda
