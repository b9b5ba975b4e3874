// All-reduce of one tensor or several on GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "backend/gpu/host_work.h"

namespace rueda {

// With NCCL a single tensor is reduced where it lies; several are packed into a buffer and unpacked
// from it, in a launch each, converted and scaled on the way where they travel as a narrower type.
// Otherwise hierarchically or by MPI where that road was taken and suits, else staged.
class AllreduceTask final : public GpuTask {
 public:
  // `part_bytes`: how much is packed at once where the host takes part.
  AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks,
                std::int64_t part_bytes);

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override;
  [[nodiscard]] GpuRoad way(const GpuLane& gpu) const override;
  Status reserve(GpuLane& gpu) override;
  Status enqueue(GpuLane& gpu, const Lane& lane) override;
  Status conclude(GpuLane& gpu, const Lane& lane) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_staged() const override { return host_work_ && host_work_->is_done(); }
  [[nodiscard]] const Operation* on_host() const override {
    return host_work_ ? host_work_->on_host() : nullptr;
  }
  [[nodiscard]] bool waits_for_others() const override {
    return host_work_ && host_work_->waits_for_others();
  }

 private:
  // Whether NCCL takes the tensor where it lies.
  [[nodiscard]] bool lies_well() const;
  [[nodiscard]] DataType packed() const { return reduction_.wire.value_or(reduction_.dtype); }

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  const int ranks_;
  const std::int64_t part_bytes_;
  std::int64_t count_ = 0;
  bool takes_part_ = true;
  std::byte* buffer_ = nullptr;  // where the tensors are packed; null where they are not
  std::unique_ptr<HostWork> host_work_;
};

}  // namespace rueda
