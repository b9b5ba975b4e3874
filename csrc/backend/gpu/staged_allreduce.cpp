#include "backend/gpu/staged_allreduce.h"

#include <algorithm>
#include <utility>

#include "backend/gpu/packing.h"

namespace rueda {

namespace {

// Large enough for a copy engine to reach full speed.
constexpr std::int64_t chunk_bytes = 4 << 20;

}  // namespace

StagedAllreduce::StagedAllreduce(const Reduction& reduction, std::vector<Piece> pieces)
    : reduction_(reduction), pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  takes_part_ = contributes(pieces_);
  chunk_ = chunk_bytes / static_cast<std::int64_t>(size_of(reduction_.dtype));
  chunks_ = (count_ + chunk_ - 1) / chunk_;
}

std::size_t StagedAllreduce::slots() const {
  return std::min(max_slots, static_cast<std::size_t>(chunks_));
}

Status StagedAllreduce::reserve(GpuLane& gpu) const {
  for (std::size_t slot = 0; slot < slots(); ++slot) {
    auto memory = gpu.memory().staging(gpu.gpu().device, slot, bytes_of(chunk_, reduction_.dtype));
    if (!memory) return memory.status();
  }
  return {};
}

Expected<bool> StagedAllreduce::advance(GpuLane& gpu, const Lane& lane, Backend& host) {
  bool moved = false;
  while (fetched_ < chunks_ && fetched_ < returned_ + static_cast<std::int64_t>(max_slots)) {
    if (Status status = fetch(gpu, lane, fetched_); !status.ok()) return status;
    ++fetched_;
    moved = true;
  }
  if (reduced_ < fetched_) {
    const auto reduced = reduce(lane, host);
    if (!reduced) return reduced.status();
    moved = moved || *reduced;
  }
  if (returned_ < reduced_) {
    if (Status status = put_back(gpu, lane, returned_); !status.ok()) return status;
    ++returned_;
    moved = true;
  }
  if (returned_ == chunks_ && !joined_) {
    if (Status status = join_streams(gpu); !status.ok()) return status;
    joined_ = true;
    moved = true;
  }
  return moved;
}

std::int64_t StagedAllreduce::count_of(std::int64_t chunk) const {
  return std::min(chunk_, count_ - chunk * chunk_);
}

std::vector<StagedAllreduce::Part> StagedAllreduce::parts_of(std::int64_t chunk) const {
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

// Chunk k + 3 reuses the slot of chunk k, which must be back on the GPU by then.
Status StagedAllreduce::fetch(GpuLane& gpu, const Lane& lane, std::int64_t chunk) {
  const std::size_t slot = static_cast<std::size_t>(chunk) % max_slots;
  auto memory = gpu.memory().staging(gpu.gpu().device, slot, bytes_of(chunk_, reduction_.dtype));
  if (!memory) return memory.status();
  if (fetches_.size() <= slot) {
    for (auto* events : {&fetches_, &returns_}) {
      auto event = CudaEvent::create(gpu.gpu().device);
      if (!event) return event.status();
      events->push_back(std::move(event).value());
    }
  } else if (Status status = gpu.stream().wait_for(returns_[slot]); !status.ok()) {
    return status;
  }
  memory_[slot] = (*memory)->data();
  std::byte* target = memory_[slot];
  for (const Part& part : parts_of(chunk)) {
    if (!takes_part_) break;
    const std::size_t bytes = bytes_of(part.count, reduction_.dtype);
    const std::byte* source = pieces_[part.piece].input + bytes_of(part.first, reduction_.dtype);
    if (Status status = copy_to_host(gpu.stream(), target, source, bytes); !status.ok())
      return status;
    target += bytes;
    lane.counters->bytes_staged.add(static_cast<std::int64_t>(bytes));
  }
  return fetches_[slot].record(gpu.stream());
}

Expected<bool> StagedAllreduce::reduce(const Lane& lane, Backend& host) {
  if (!reducing_) {
    const std::size_t slot = static_cast<std::size_t>(reduced_) % max_slots;
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
  if (!status.ok()) return status;
  ++reduced_;
  return true;
}

// Uses the second stream, to overlap with copies from the GPU. Events that the tensors wait for
// have occurred: this chunk was read from them, or this rank has joined and has no output.
Status StagedAllreduce::put_back(GpuLane& gpu, const Lane& lane, std::int64_t chunk) {
  const std::size_t slot = static_cast<std::size_t>(chunk) % max_slots;
  const std::byte* source = memory_[slot];
  for (const Part& part : parts_of(chunk)) {
    const std::size_t bytes = bytes_of(part.count, reduction_.dtype);
    if (std::byte* const output = pieces_[part.piece].output; output != nullptr) {
      std::byte* const target = output + bytes_of(part.first, reduction_.dtype);
      const Status status = copy_to_device(gpu.second_stream(), target, source, bytes);
      if (!status.ok()) return status;
      lane.counters->bytes_staged.add(static_cast<std::int64_t>(bytes));
    }
    source += bytes;
  }
  return returns_[slot].record(gpu.second_stream());
}

// Makes waiting for the lane's first stream include the copies back.
Status StagedAllreduce::join_streams(GpuLane& gpu) {
  for (const CudaEvent& event : returns_) {
    if (Status status = gpu.stream().wait_for(event); !status.ok()) return status;
  }
  return {};
}

}  // namespace rueda
