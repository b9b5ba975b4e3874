// All-reduce of tensors of GPUs by an MPI that takes their memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/gpu/host_work.h"
#include "backend/gpu/packing.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace rueda {

// The tensors are packed into memory of ours, which MPI reduces where it lies, and unpacked from
// it, part by part. So MPI, which cannot be stopped, never has a tensor of the application.
// Elements are converted and scaled on the way: 16-bit floats travel as float32, and so are rounded
// once.
class MpiAllreduce final : public HostWork {
 public:
  // Whether that road was taken, and gives the results that Rueda promises; the same on all ranks.
  [[nodiscard]] static bool suits(const GpuLane& gpu, const Reduction& reduction, int ranks);

  MpiAllreduce(const Reduction& reduction, const std::vector<Piece>& pieces,
               std::int64_t part_bytes);

  Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_done() const override { return parts_.empty(); }
  [[nodiscard]] const Operation* on_host() const override { return reducing_.get(); }

 private:
  Status begin_part(GpuLane& gpu, const Lane& lane);
  // Whether MPI has done the part; begins with it once it has been packed.
  Expected<bool> reduce(GpuLane& gpu, const Lane& lane);
  Status end_part(GpuLane& gpu, const Lane& lane);
  [[nodiscard]] const BatchPart& part() const { return parts_.front(); }

  const Reduction reduction_;
  const DataType packed_;         // what lies in the buffer
  std::vector<BatchPart> parts_;  // to come; the first is under way
  std::shared_ptr<const DeviceMemory> buffer_;
  std::optional<CudaEvent> is_packed_;  // of the part that is under way
  std::unique_ptr<Operation> reducing_;
};

}  // namespace rueda
