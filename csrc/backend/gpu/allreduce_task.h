// Allreduce of one tensor or several on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/staged_allreduce.h"

namespace rueda {

// With NCCL, a single tensor is reduced in place; factors are applied by extra kernel launches
// before or after. Several tensors are packed into a buffer and unpacked from it, in one launch
// each, which also convert and scale. Without NCCL the tensors are staged.
class AllreduceTask final : public GpuTask {
 public:
  AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks);

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override;
  [[nodiscard]] std::optional<Status> reserve(GpuLane& gpu, Way way) override;
  Status keep(GpuLane& gpu, Way way) override;
  void give_back(GpuLane& gpu) override { gpu.memory().fusion().give_back(); }
  Status precede(GpuLane& gpu, const Lane& lane) override;
  Status enqueue(GpuLane& gpu, const Lane& lane) override;
  Status conclude(GpuLane& gpu, const Lane& lane) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_staged() const override { return staged_ && staged_->is_done(); }
  [[nodiscard]] const Operation* on_host() const override {
    return staged_ ? staged_->on_host() : nullptr;
  }

 private:
  // Whether NCCL can reduce the tensor in place.
  [[nodiscard]] bool lies_well() const;
  [[nodiscard]] DataType packed() const { return reduction_.wire.value_or(reduction_.dtype); }

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  const int ranks_;
  std::int64_t count_ = 0;
  std::size_t packed_bytes_ = 0;
  NcclPlan plan_;  // if NCCL is used
  bool takes_part_ = true;
  std::optional<StagedAllreduce> staged_;
};

}  // namespace rueda
