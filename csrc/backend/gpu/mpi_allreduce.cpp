#include "backend/gpu/mpi_allreduce.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <utility>

namespace rueda {

namespace {

bool is_floating(DataType dtype) {
  return info(dtype).kind == DataKind::floating;
}

DataType packed_type(DataType dtype) {
  return is_floating(dtype) && size_of(dtype) < 4 ? DataType::float32 : dtype;
}

// What follows the sum.
double factor_after(const Reduction& reduction) {
  return reduction.op == ReduceOp::average ? reduction.postscale / reduction.divisor
                                           : reduction.postscale;
}

// The transport's, which goes on by itself, as what tells who is awaited.
class TransportAllreduce final : public Operation {
 public:
  TransportAllreduce(const Lane& lane, Ticket ticket) : lane_(lane), ticket_(std::move(ticket)) {}

  bool advance() override { return false; }
  [[nodiscard]] bool done() const override { return ticket_->done; }
  [[nodiscard]] const Status& status() const override { return ticket_->status; }
  [[nodiscard]] std::vector<int> awaited() const override {
    std::vector<int> others;
    for (const int rank : *lane_.members) {
      if (!done() && rank != lane_.world_rank(lane_.rank)) others.push_back(rank);
    }
    return others;
  }

 private:
  const Lane& lane_;
  const Ticket ticket_;
};

}  // namespace

bool MpiAllreduce::suits(const GpuLane& gpu, const Reduction& reduction, int ranks) {
  if (gpu.road() != GpuRoad::mpi || reduction.wire) return false;
  const DataKind kind = info(reduction.dtype).kind;
  if (kind != DataKind::floating && kind != DataKind::integer) return false;
  const bool averages = reduction.op == ReduceOp::average;
  const bool sums = averages || reduction.op == ReduceOp::sum;
  // Those who have joined give zeros.
  if (!sums && reduction.contributors != ranks) return false;
  const bool scales = averages || reduction.prescale != 1.0 || reduction.postscale != 1.0;
  if (kind == DataKind::integer) {
    const bool is_known = sums || reduction.op == ReduceOp::product ||
                          reduction.op == ReduceOp::min || reduction.op == ReduceOp::max;
    return is_known && !scales;
  }
  // What MPI makes of NaN in a minimum is its own affair.
  if (!sums && reduction.op != ReduceOp::product) return false;
  const bool converts = scales || packed_type(reduction.dtype) != reduction.dtype;
  return !converts || gpu.all_have_kernels();
}

MpiAllreduce::MpiAllreduce(const Reduction& reduction, const std::vector<Piece>& pieces,
                           std::int64_t part_bytes)
    : reduction_(reduction),
      packed_(packed_type(reduction.dtype)),
      parts_(parts_of(pieces, reduction.dtype,
                      std::min<std::int64_t>(
                          INT_MAX, part_bytes / static_cast<std::int64_t>(size_of(packed_))))) {}

Expected<bool> MpiAllreduce::advance(GpuLane& gpu, const Lane& lane, Backend&) {
  bool moved = false;
  while (!is_done()) {
    if (!is_packed_) {
      if (Status status = begin_part(gpu, lane); !status) return status;
      moved = true;
    }
    const auto reduced = reduce(gpu, lane);
    if (!reduced) return reduced;
    if (!*reduced) break;
    if (Status status = end_part(gpu, lane); !status) return status;
    moved = true;
  }
  return moved;
}

Status MpiAllreduce::begin_part(GpuLane& gpu, const Lane& lane) {
  const std::size_t bytes = bytes_of(part().count, packed_);
  auto buffer = gpu.buffer_for_mpi(bytes);
  if (!buffer) return buffer.status();
  buffer_ = std::move(buffer).value();
  const Status status =
      contributes(part().pieces)
          ? pack(gpu, lane, part().pieces, {reduction_.dtype, packed_, reduction_.prescale},
                 buffer_->data())
          : fill_bytes(gpu.stream(), buffer_->data(), std::byte{}, bytes);
  if (!status) return status;
  auto packed = CudaEvent::after(gpu.stream());
  if (!packed) return packed.status();
  is_packed_.emplace(std::move(packed).value());
  return {};
}

Expected<bool> MpiAllreduce::reduce(GpuLane& gpu, const Lane& lane) {
  if (!reducing_) {
    const auto is_packed = is_packed_->is_done();
    if (!is_packed || !*is_packed) return is_packed;
    const ReduceOp op = reduction_.op == ReduceOp::average ? ReduceOp::sum : reduction_.op;
    lane.counters->mpi_calls.add(1);
    const GpuMemory memory{buffer_->data(), buffer_,
                           [device = gpu.gpu().device](const std::function<void()>& call) {
                             const CurrentDevice current(*device);
                             call();
                           }};
    reducing_ = std::make_unique<TransportAllreduce>(
        lane, lane.transport->allreduce(memory, part().count, packed_, op));
  }
  if (!reducing_->done()) return false;
  const Status status = reducing_->status();
  reducing_.reset();
  if (!status) return status;
  return true;
}

Status MpiAllreduce::end_part(GpuLane& gpu, const Lane& lane) {
  const Status status =
      unpack(gpu, lane, part().pieces, {reduction_.dtype, packed_, factor_after(reduction_)},
             buffer_->data());
  is_packed_.reset();
  parts_.erase(parts_.begin());
  return status;
}

}  // namespace rueda
