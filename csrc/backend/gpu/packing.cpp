#include "backend/gpu/packing.h"

#include <algorithm>

namespace rueda {

namespace {

// Copies in one launch if all ranks have the kernels; otherwise with one copy each, unconverted.
class BatchCopy {
 public:
  explicit BatchCopy(GpuLane& gpu) : gpu_(gpu) {}

  Status add(const TensorCopy& copy) {
    const std::size_t bytes =
        static_cast<std::size_t>(copy.elements) * std::min(size_of(copy.from), size_of(copy.to));
    packed_bytes_ += static_cast<std::int64_t>(bytes);
    if (!gpu_.path().all_have_kernels()) {
      return copy_on_device(gpu_.stream(), static_cast<std::byte*>(copy.destination),
                            static_cast<const std::byte*>(copy.source), bytes);
    }
    copies_.push_back(copy);
    return {};
  }

  Status launch(const Lane& lane, double scale) {
    lane.counters->bytes_packed.add(packed_bytes_);
    if (copies_.empty()) return {};
    lane.counters->gpu_launches.add(1);
    return gpu_.gpu().kernels->copy(gpu_.stream(), copies_, scale);
  }

 private:
  GpuLane& gpu_;
  std::vector<TensorCopy> copies_;
  std::int64_t packed_bytes_ = 0;
};

}  // namespace

Status pack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
            const Packing& packing, std::byte* buffer) {
  BatchCopy batch(gpu);
  for (const Piece& piece : pieces) {
    const Status status = batch.add({piece.input, buffer, static_cast<std::uint64_t>(piece.count),
                                     packing.dtype, packing.packed});
    if (!status.ok()) return status;
    buffer += padded_bytes_of(piece.count, packing.packed);
  }
  return batch.launch(lane, packing.scale);
}

Status unpack(GpuLane& gpu, const Lane& lane, const std::vector<Piece>& pieces,
              const Packing& packing, const std::byte* buffer) {
  BatchCopy batch(gpu);
  for (const Piece& piece : pieces) {
    if (piece.output != nullptr) {
      const Status status =
          batch.add({buffer, piece.output, static_cast<std::uint64_t>(piece.count), packing.packed,
                     packing.dtype});
      if (!status.ok()) return status;
    }
    buffer += padded_bytes_of(piece.count, packing.packed);
  }
  return batch.launch(lane, packing.scale);
}

Status scale(GpuLane& gpu, const Lane& lane, const std::byte* input, std::byte* output,
             std::int64_t count, DataType dtype, double factor) {
  if (factor == 1.0 || count == 0) return {};
  const TensorCopy tensor{input, output, static_cast<std::uint64_t>(count), dtype, dtype};
  lane.counters->gpu_launches.add(1);
  return gpu.gpu().kernels->copy(gpu.stream(), {&tensor, 1}, factor);
}

}  // namespace rueda
