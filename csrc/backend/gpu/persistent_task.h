// Agrees on an allreduce of one tensor that the application will start itself.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "cuda/memory.h"

namespace rueda {

// With NCCL, the ranks agree that all have the memory they need, and connect a communicator for the
// set's persistent operations unless there is one. When staged, there is nothing to arrange: each
// run will be an operation of the engine.
class PersistentTask final : public GpuTask {
 public:
  // `timeout`: limit for one run; zero for none.
  PersistentTask(const Reduction& reduction, Piece piece, const Lane& lane, Duration timeout,
                 TakeReduction take);

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override;
  [[nodiscard]] std::unique_ptr<Operation> prepare(GpuLane& gpu, const Lane& lane, Backend& host,
                                                   Way way) override;
  Status enqueue(GpuLane& gpu, const Lane& lane) override;
  [[nodiscard]] Expected<bool> is_launched(const GpuLane& gpu) const override;
  [[nodiscard]] bool failed_everywhere() const override { return failed_everywhere_; }
  Status conclude(GpuLane& gpu, const Lane& lane) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_staged() const override { return is_staged_; }
  [[nodiscard]] const Operation* on_host() const override { return nullptr; }

 private:
  // What the ranks exchange, as raw bytes.
  struct Contribution {
    std::array<char, 256> problem{};  // why this rank cannot take part; zero-terminated
    nccl::UniqueId id{};              // for a new communicator; the first rank's is used
  };

  Status fill_contribution(GpuLane& gpu, bool makes_id);

  const Reduction reduction_;
  const Piece piece_;
  const Duration timeout_;
  const TakeReduction take_;
  Contribution contribution_;
  std::vector<Contribution> contributions_;
  DeviceMemory buffer_;  // if the elements travel as another type
  bool failed_everywhere_ = false;
  bool is_staged_ = false;
};

}  // namespace rueda
