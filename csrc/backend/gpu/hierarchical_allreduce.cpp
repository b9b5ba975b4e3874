#include "backend/gpu/hierarchical_allreduce.h"

#include <utility>

#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/packing.h"

namespace rueda {

namespace {

// Slices begin at multiples of so many elements, where NCCL is fast.
constexpr std::int64_t alignment = 128;

// Inputs are scaled where they are reduced first; the result across hosts, where averages are
// divided too, so that integers are rounded as everywhere. Nothing is narrowed within a host.
Reduction within(const Reduction& reduction) {
  Reduction local = reduction;
  if (reduction.op == ReduceOp::average) local.op = ReduceOp::sum;
  local.postscale = 1.0;
  local.divisor = 1;
  local.wire.reset();
  return local;
}

Reduction across(const Reduction& reduction, int hosts) {
  Reduction global = on_the_wire(reduction);
  global.contributors = hosts;
  global.prescale = 1.0;
  return global;
}

}  // namespace

bool HierarchicalAllreduce::suits(const GpuLane& gpu, const Reduction& reduction, int ranks) {
  if (gpu.road() != GpuRoad::hierarchical) return false;
  if (reduction.wire && !gpu.all_have_kernels()) return false;
  const bool is_sum = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::average;
  // Ranks that have joined give zeros.
  if (reduction.contributors != ranks && !is_sum) return false;
  return nccl_combination(within(reduction), ranks).has_value();
}

HierarchicalAllreduce::HierarchicalAllreduce(const Reduction& reduction, std::vector<Piece> pieces)
    : reduction_(reduction), pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  if (count_ == 0) step_ = Step::done;
}

Expected<bool> HierarchicalAllreduce::advance(GpuLane& gpu, const Lane& lane, Backend& host) {
  bool moved = false;
  while (step_ != Step::done) {
    const auto took = take_step(gpu, lane, host);
    if (!took) return took;
    if (!*took) break;
    moved = true;
  }
  return moved;
}

Expected<bool> HierarchicalAllreduce::take_step(GpuLane& gpu, const Lane& lane, Backend& host) {
  const bool waits_for_nccl = step_ == Step::scattering || step_ == Step::gathering;
  if (waits_for_nccl) {
    const auto launched = gpu.communicator()->poll();
    if (!launched || !*launched) return launched;
  }
  Status status;
  switch (step_) {
    case Step::scatter:
      status = scatter(gpu, lane);
      step_ = Step::scattering;
      break;
    case Step::scattering:
      if (gpu.hierarchy().carries_slice()) status = begin_across(gpu, lane);
      step_ = Step::across;
      break;
    case Step::across:
      if (across_) {
        const auto moved = across_->advance(gpu, across_lane_, host);
        if (!moved || !across_->is_done()) return moved;
        across_.reset();
        status = end_across(gpu, lane);
      }
      if (status) status = gather(gpu, lane);
      step_ = Step::gathering;
      break;
    case Step::gathering:
      status = unpack(gpu, lane, pieces_, {reduction_.dtype, reduction_.dtype, 1.0}, buffer_);
      step_ = Step::done;
      break;
    case Step::done: break;
  }
  if (!status) return status;
  return true;
}

std::byte* HierarchicalAllreduce::slice(int number) const {
  return buffer_ + bytes_of(number * slice_count_, reduction_.dtype);
}

Status HierarchicalAllreduce::scatter(GpuLane& gpu, const Lane& lane) {
  const Hierarchy& hierarchy = gpu.hierarchy();
  const std::int64_t slices = hierarchy.slices;
  slice_count_ = (count_ + slices * alignment - 1) / (slices * alignment) * alignment;
  const std::size_t all = bytes_of(slices * slice_count_, reduction_.dtype);
  const std::size_t narrow = reduction_.wire ? bytes_of(slice_count_, *reduction_.wire) : 0;
  const auto buffer = gpu.buffer(all + narrow);
  if (!buffer) return buffer.status();
  buffer_ = *buffer;
  if (reduction_.wire) narrow_ = buffer_ + all;

  const bool takes_part = contributes(pieces_);
  const std::size_t filled = takes_part ? bytes_of(count_, reduction_.dtype) : 0;
  Status status;
  if (takes_part) {
    status = pack(gpu, lane, pieces_, {reduction_.dtype, reduction_.dtype, 1.0}, buffer_);
  }
  if (status && filled < all) {
    status = fill_bytes(gpu.stream(), buffer_ + filled, std::byte{}, all - filled);
  }
  if (!status) return status;

  NcclCommunicator& nccl = *gpu.communicator();
  const NcclCombination how = *nccl_combination(within(reduction_), nccl.size());
  const StreamHandle stream = gpu.stream().handle();
  const auto elements = static_cast<std::uint64_t>(slice_count_);
  lane.counters->nccl_calls.add(1);
  if (nccl.size() == hierarchy.slices) {
    return nccl.reduce_scatter(buffer_, slice(nccl.rank()), elements, how, stream);
  }
  // Some ranks carry none: a reduction to each that does, launched together.
  status = nccl.begin_group();
  for (int root = 0; root < hierarchy.slices && status; ++root) {
    status = nccl.reduce(slice(root), slice(root), elements, how, root, stream);
  }
  const Status ended = nccl.end_group();
  return status ? ended : status;
}

Status HierarchicalAllreduce::begin_across(GpuLane& gpu, const Lane& lane) {
  const Hierarchy& hierarchy = gpu.hierarchy();
  for (const int rank : hierarchy.across) across_ranks_.push_back(lane.world_rank(rank));
  across_lane_ = lane;
  across_lane_.members = &across_ranks_;
  across_lane_.rank = hierarchy.across_rank;
  across_lane_.channel = nullptr;

  std::byte* const own = slice(hierarchy.local_rank);
  std::byte* const travels = narrow_ != nullptr ? narrow_ : own;
  across_ = std::make_unique<StagedAllreduce>(across(reduction_, across_lane_.size()),
                                              std::vector<Piece>{{travels, travels, slice_count_}});
  if (narrow_ == nullptr) return {};
  return pack(gpu, lane, {{own, own, slice_count_}}, {reduction_.dtype, wire(), 1.0}, narrow_);
}

Status HierarchicalAllreduce::end_across(GpuLane& gpu, const Lane& lane) {
  if (narrow_ == nullptr) return {};
  std::byte* const own = slice(gpu.hierarchy().local_rank);
  return unpack(gpu, lane, {{own, own, slice_count_}},
                {reduction_.dtype, wire(), reduction_.postscale}, narrow_);
}

Status HierarchicalAllreduce::gather(GpuLane& gpu, const Lane& lane) {
  NcclCommunicator& nccl = *gpu.communicator();
  const StreamHandle stream = gpu.stream().handle();
  const auto elements = static_cast<std::uint64_t>(slice_count_);
  lane.counters->nccl_calls.add(1);
  if (nccl.size() == gpu.hierarchy().slices) {
    return nccl.allgather(slice(nccl.rank()), buffer_, elements, reduction_.dtype, stream);
  }
  Status status = nccl.begin_group();
  for (int root = 0; root < gpu.hierarchy().slices && status; ++root) {
    status = nccl.broadcast(slice(root), slice(root), elements, reduction_.dtype, root, stream);
  }
  const Status ended = nccl.end_group();
  return status ? ended : status;
}

}  // namespace rueda
