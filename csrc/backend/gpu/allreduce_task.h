// Allreduce of one tensor or several on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "backend/gpu/staged_allreduce.h"

namespace rueda {

// With NCCL a single tensor is reduced where it lies; several are packed into a buffer and unpacked
// from it, in a launch each, converted and scaled on the way where they travel as a narrower type.
// Otherwise it is staged.
class AllreduceTask final : public GpuTask {
 public:
  AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks);

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override;
  Status reserve(GpuLane& gpu) override;
  Status enqueue(GpuLane& gpu, const Lane& lane) override;
  Status conclude(GpuLane& gpu, const Lane& lane) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_staged() const override { return staged_ && staged_->is_done(); }
  [[nodiscard]] const Operation* on_host() const override {
    return staged_ ? staged_->on_host() : nullptr;
  }

 private:
  // Whether NCCL takes the tensor where it lies.
  [[nodiscard]] bool lies_well() const;
  [[nodiscard]] DataType packed() const { return reduction_.wire.value_or(reduction_.dtype); }

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  const int ranks_;
  std::int64_t count_ = 0;
  bool takes_part_ = true;
  std::byte* buffer_ = nullptr;  // where the tensors are packed; null where they are not
  std::optional<StagedAllreduce> staged_;
};

}  // namespace rueda
