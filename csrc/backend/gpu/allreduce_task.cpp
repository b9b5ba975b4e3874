#include "backend/gpu/allreduce_task.h"

#include <algorithm>
#include <utility>

#include "backend/gpu/nccl_factor.h"

namespace rueda {

namespace {

std::size_t bytes_of(std::int64_t count, DataType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

}  // namespace

AllreduceTask::AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks,
                             std::int64_t chunk_bytes)
    : reduction_(reduction), pieces_(std::move(pieces)), ranks_(ranks) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  takes_part_ = contributes(pieces_);
  chunk_ =
      std::max<std::int64_t>(1, chunk_bytes / static_cast<std::int64_t>(size_of(reduction_.dtype)));
  chunks_ = (count_ + chunk_ - 1) / chunk_;
}

// --- NCCL

bool AllreduceTask::suits_nccl(const GpuLane& gpu) const {
  if (reduction_.wire && !gpu.all_have_kernels()) return false;
  // Ranks that have joined give zeros.
  const bool is_sum = reduction_.op == ReduceOp::sum || reduction_.op == ReduceOp::average;
  if (reduction_.contributors != ranks_ && !is_sum) return false;
  return nccl_combination(on_the_wire(reduction_), ranks_).has_value();
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
  auto buffer = gpu.buffer(bytes_of(count_, wire()));
  if (!buffer) return buffer.status();
  buffer_ = *buffer;
  Status status = takes_part_
                      ? pack(gpu, lane, buffer_)
                      : fill_bytes(gpu.stream(), buffer_, std::byte{}, bytes_of(count_, wire()));
  if (status) status = gpu.communicator()->allreduce(buffer_, buffer_, count, how, stream);
  return status;
}

Status AllreduceTask::pack(GpuLane& gpu, const Lane& lane, std::byte* buffer) {
  lane.counters->bytes_packed.add(static_cast<std::int64_t>(bytes_of(count_, wire())));
  std::vector<TensorCopy> copies;
  for (const Piece& piece : pieces_) {
    const std::size_t bytes = bytes_of(piece.count, wire());
    if (gpu.all_have_kernels()) {
      copies.push_back(
          {piece.input, buffer, static_cast<std::uint64_t>(piece.count), reduction_.dtype, wire()});
    } else if (Status status = copy_on_device(gpu.stream(), buffer, piece.input, bytes); !status) {
      return status;
    }
    buffer += bytes;
  }
  if (copies.empty()) return {};
  lane.counters->gpu_launches.add(1);
  return gpu.gpu().kernels->copy(gpu.stream(), copies, reduction_.wire ? reduction_.prescale : 1.0);
}

// Unpacks.
Status AllreduceTask::conclude(GpuLane& gpu, const Lane& lane) {
  if (buffer_ == nullptr) return {};
  const std::byte* buffer = buffer_;
  std::vector<TensorCopy> copies;
  for (const Piece& piece : pieces_) {
    const std::size_t bytes = bytes_of(piece.count, wire());
    if (piece.output != nullptr && gpu.all_have_kernels()) {
      copies.push_back({buffer, piece.output, static_cast<std::uint64_t>(piece.count), wire(),
                        reduction_.dtype});
    } else if (piece.output != nullptr) {
      const Status status = copy_on_device(gpu.stream(), piece.output, buffer, bytes);
      if (!status) return status;
    }
    buffer += bytes;
  }
  if (copies.empty()) return {};
  lane.counters->bytes_packed.add(static_cast<std::int64_t>(bytes_of(count_, wire())));
  lane.counters->gpu_launches.add(1);
  return gpu.gpu().kernels->copy(gpu.stream(), copies,
                                 reduction_.wire ? reduction_.postscale : 1.0);
}

// --- Through the host's memory

Expected<bool> AllreduceTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  bool moved = false;
  while (fetched_ < chunks_ && fetched_ < returned_ + static_cast<std::int64_t>(slots)) {
    if (Status status = fetch(gpu, lane, fetched_); !status) return status;
    ++fetched_;
    moved = true;
  }
  if (reduced_ < fetched_) {
    const auto reduced = reduce(lane, host);
    if (!reduced) return reduced.status();
    moved = moved || *reduced;
  }
  if (returned_ < reduced_) {
    if (Status status = put_back(gpu, lane, returned_); !status) return status;
    ++returned_;
    moved = true;
  }
  if (returned_ == chunks_ && !joined_) {
    if (Status status = join_streams(gpu); !status) return status;
    joined_ = true;
    moved = true;
  }
  return moved;
}

std::int64_t AllreduceTask::count_of(std::int64_t chunk) const {
  return std::min(chunk_, count_ - chunk * chunk_);
}

std::vector<AllreduceTask::Part> AllreduceTask::parts_of(std::int64_t chunk) const {
  std::vector<Part> parts;
  std::int64_t first = chunk * chunk_;
  std::int64_t rest = count_of(chunk);
  for (std::size_t i = 0; i < pieces_.size() && rest > 0; ++i) {
    const std::int64_t length = pieces_[i].count;
    if (first < length) {
      const std::int64_t count = std::min(rest, length - first);
      parts.push_back({i, first, count});
      rest -= count;
      first += count;
    }
    first -= length;
  }
  return parts;
}

// Chunk k + 3 takes the place of chunk k, which must be on the GPU again by then.
Status AllreduceTask::fetch(GpuLane& gpu, const Lane& lane, std::int64_t chunk) {
  const std::size_t slot = static_cast<std::size_t>(chunk) % slots;
  auto memory = gpu.staging(slot, bytes_of(chunk_, reduction_.dtype));
  if (!memory) return memory.status();
  if (fetches_.size() <= slot) {
    for (auto* events : {&fetches_, &returns_}) {
      auto event = CudaEvent::create(gpu.gpu().device);
      if (!event) return event.status();
      events->push_back(std::move(event).value());
    }
  } else if (Status status = gpu.stream().wait_for(returns_[slot]); !status) {
    return status;
  }
  memory_[slot] = (*memory)->data();
  std::byte* target = memory_[slot];
  for (const Part& part : parts_of(chunk)) {
    if (!takes_part_) break;
    const std::size_t bytes = bytes_of(part.count, reduction_.dtype);
    const std::byte* source = pieces_[part.piece].input + bytes_of(part.first, reduction_.dtype);
    if (Status status = copy_to_host(gpu.stream(), target, source, bytes); !status) return status;
    target += bytes;
    lane.counters->bytes_staged.add(static_cast<std::int64_t>(bytes));
  }
  return fetches_[slot].record(gpu.stream());
}

Expected<bool> AllreduceTask::reduce(const Lane& lane, Backend& host) {
  if (!reducing_) {
    const std::size_t slot = static_cast<std::size_t>(reduced_) % slots;
    const auto here = fetches_[slot].is_done();
    if (!here) return here.status();
    if (!*here) return false;
    std::byte* const data = memory_[slot];
    reducing_ = host.allreduce(lane, reduction_,
                               {{takes_part_ ? data : nullptr, data, count_of(reduced_)}});
  }
  const bool moved = reducing_->advance();
  if (!reducing_->done()) return moved;
  const Status status = reducing_->status();
  reducing_.reset();
  if (!status) return status;
  ++reduced_;
  return true;
}

// On the second stream, so that it overlaps with what comes from the GPU. What the tensors wait for
// has happened: this chunk has come from them, or this rank has joined and nobody has an output.
Status AllreduceTask::put_back(GpuLane& gpu, const Lane& lane, std::int64_t chunk) {
  const std::size_t slot = static_cast<std::size_t>(chunk) % slots;
  const std::byte* source = memory_[slot];
  for (const Part& part : parts_of(chunk)) {
    const std::size_t bytes = bytes_of(part.count, reduction_.dtype);
    if (std::byte* const output = pieces_[part.piece].output; output != nullptr) {
      std::byte* const target = output + bytes_of(part.first, reduction_.dtype);
      const Status status = copy_to_device(gpu.second_stream(), target, source, bytes);
      if (!status) return status;
      lane.counters->bytes_staged.add(static_cast<std::int64_t>(bytes));
    }
    source += bytes;
  }
  return returns_[slot].record(gpu.second_stream());
}

// Whoever waits for the lane's first stream waits for the copies back, too.
Status AllreduceTask::join_streams(GpuLane& gpu) {
  for (const CudaEvent& event : returns_) {
    if (Status status = gpu.stream().wait_for(event); !status) return status;
  }
  return {};
}

}  // namespace rueda
