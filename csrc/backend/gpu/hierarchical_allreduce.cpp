#include "backend/gpu/hierarchical_allreduce.h"

#include <algorithm>
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
  return gpu.road() == GpuRoad::hierarchical &&
         nccl_can_take_part(reduction, within(reduction), ranks, gpu.all_have_kernels());
}

HierarchicalAllreduce::HierarchicalAllreduce(const Reduction& reduction,
                                             const std::vector<Piece>& pieces,
                                             std::int64_t part_bytes)
    : reduction_(reduction),
      parts_(parts_of(pieces, reduction.dtype,
                      part_bytes / static_cast<std::int64_t>(size_of(reduction.dtype)))) {}

const Operation* HierarchicalAllreduce::on_host() const {
  if (meeting_) return meeting_.get();
  return carrying_ ? carrying_->on_host() : nullptr;
}

Expected<bool> HierarchicalAllreduce::advance(GpuLane& gpu, const Lane& lane, Backend& host) {
  bool moved = false;
  while (!is_done()) {
    const auto took = take_step(gpu, lane, host);
    if (!took) return took;
    moved = moved || *took;
    if (!*took) break;
  }
  return moved;
}

// Returns whether anything moved.
Expected<bool> HierarchicalAllreduce::take_step(GpuLane& gpu, const Lane& lane, Backend& host) {
  const auto then = [this](const Status& status, Step next) -> Expected<bool> {
    if (!status) return status;
    step_ = next;
    return true;
  };
  switch (step_) {
    case Step::reserve: return then(reserve(gpu, lane), Step::scatter);
    case Step::scatter: {
      const auto ready = gpu.communicator()->poll();
      if (!ready || !*ready) return ready;
      return then(scatter(gpu, lane), Step::scattering);
    }
    case Step::scattering: {
      const auto launched = gpu.communicator()->poll();
      if (!launched || !*launched) return launched;
      if (across_.members.empty()) return then({}, Step::meet);
      return then(begin_across(gpu, lane), Step::across);
    }
    case Step::across: {
      const auto moved = carrying_->advance(gpu, across_.lane, host);
      if (!moved || !carrying_->is_done()) return moved;
      carrying_.reset();
      return then(end_across(gpu, lane), Step::meet);
    }
    case Step::meet: {
      const auto moved = meet(host);
      if (!moved || meeting_) return moved;
      return then({}, Step::gather);
    }
    case Step::gather: return then(gather(gpu, lane), Step::gathering);
    case Step::gathering: {
      const auto launched = gpu.communicator()->poll();
      if (!launched || !*launched) return launched;
      return then(unpack_part(gpu, lane), Step::reserve);
    }
  }
  return false;
}

std::byte* HierarchicalAllreduce::slice(int number) const {
  return buffer_ + bytes_of(number * slice_count_, reduction_.dtype);
}

void HierarchicalAllreduce::form_groups(const Hierarchy& hierarchy, const Lane& lane) {
  const auto form = [&](Group& group, const std::vector<int>& ranks, int rank) {
    for (const int member : ranks) group.members.push_back(lane.world_rank(member));
    group.lane = lane;
    group.lane.members = &group.members;
    group.lane.rank = rank;
    group.lane.channel = nullptr;
  };
  form(local_, hierarchy.local, hierarchy.local_rank);
  if (hierarchy.carries_slice()) form(across_, hierarchy.across, hierarchy.across_rank);
}

Status HierarchicalAllreduce::reserve(GpuLane& gpu, const Lane& lane) {
  const Hierarchy& hierarchy = gpu.hierarchy();
  if (local_.members.empty()) form_groups(hierarchy, lane);
  // To get memory may take until the GPU has done what it does: not while it waits for others.
  if (hierarchy.carries_slice()) {
    if (Status status = StagedAllreduce::reserve(gpu); !status) return status;
  }

  const std::int64_t slices = hierarchy.slices;
  slice_count_ = (part().count + slices * alignment - 1) / (slices * alignment) * alignment;
  slices_bytes_ = bytes_of(slices * slice_count_, reduction_.dtype);
  const std::size_t narrow = reduction_.wire ? bytes_of(slice_count_, *reduction_.wire) : 0;
  return gpu.reserve(slices_bytes_ + narrow);
}

Status HierarchicalAllreduce::scatter(GpuLane& gpu, const Lane& lane) {
  const Hierarchy& hierarchy = gpu.hierarchy();
  const auto buffer = gpu.buffer();
  if (!buffer) return buffer.status();
  buffer_ = *buffer;
  if (reduction_.wire) narrow_ = buffer_ + slices_bytes_;

  const bool takes_part = contributes(part().pieces);
  const std::size_t filled = takes_part ? bytes_of(part().count, reduction_.dtype) : 0;
  Status status;
  if (takes_part) {
    status = pack(gpu, lane, part().pieces, {reduction_.dtype, reduction_.dtype, 1.0}, buffer_);
  }
  if (status && filled < slices_bytes_) {
    status = fill_bytes(gpu.stream(), buffer_ + filled, std::byte{}, slices_bytes_ - filled);
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
  // Some ranks carry none: a reduction to each that does.
  return nccl.in_group(hierarchy.slices, [&](int root) {
    return nccl.reduce(slice(root), slice(root), elements, how, root, stream);
  });
}

Status HierarchicalAllreduce::begin_across(GpuLane& gpu, const Lane& lane) {
  std::byte* const own = slice(gpu.hierarchy().local_rank);
  std::byte* const travels = narrow_ != nullptr ? narrow_ : own;
  carrying_ =
      std::make_unique<StagedAllreduce>(across(reduction_, across_.lane.size()),
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

Expected<bool> HierarchicalAllreduce::meet(Backend& host) {
  if (!meeting_) {
    const std::vector<std::int64_t> lengths(local_.members.size(), 1);
    arrivals_.assign(2 * lengths.size(), std::byte{});
    meeting_ =
        host.allgather(local_.lane, arrivals_.data() + lengths.size(), arrivals_.data(), lengths);
  }
  const bool moved = meeting_->advance();
  if (!meeting_->done()) return moved;
  const Status status = meeting_->status();
  meeting_.reset();
  if (!status) return status;
  return true;
}

Status HierarchicalAllreduce::gather(GpuLane& gpu, const Lane& lane) {
  NcclCommunicator& nccl = *gpu.communicator();
  const StreamHandle stream = gpu.stream().handle();
  const auto elements = static_cast<std::uint64_t>(slice_count_);
  lane.counters->nccl_calls.add(1);
  const int slices = gpu.hierarchy().slices;
  if (nccl.size() == slices) {
    return nccl.allgather(slice(nccl.rank()), buffer_, elements, reduction_.dtype, stream);
  }
  return nccl.in_group(slices, [&](int root) {
    return nccl.broadcast(slice(root), slice(root), elements, reduction_.dtype, root, stream);
  });
}

Status HierarchicalAllreduce::unpack_part(GpuLane& gpu, const Lane& lane) {
  const Status status =
      unpack(gpu, lane, part().pieces, {reduction_.dtype, reduction_.dtype, 1.0}, buffer_);
  parts_.erase(parts_.begin());
  return status;
}

}  // namespace rueda
