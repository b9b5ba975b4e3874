// An allreduce on GPUs that the application starts itself.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/callers_communicator.h"
#include "backend/gpu/gpu_lane.h"
#include "backend/gpu/nccl_factor.h"
#include "backend/nccl/communicator.h"
#include "core/clock.h"
#include "cuda/memory.h"

namespace rueda {

// By NCCL: two launches of kernels and a call at most, all of which a CUDA graph can capture. What
// they need has been allocated before, and while a stream is captured nothing is asked of the GPU.
// A start is in the stream once NCCL has done its part, for which the first one has to wait for all
// ranks.
class PersistentReduction final : public DeviceReduction {
 public:
  // `buffer`: for all elements of the reduction's wire type, where it has one. `gpu` and `counters`
  // must outlive the last start.
  PersistentReduction(const Gpu& gpu, std::shared_ptr<CallersCommunicator> communicator,
                      const Reduction& reduction, Piece piece, DeviceMemory buffer,
                      TransferCounters& counters);
  ~PersistentReduction() override;

  [[nodiscard]] const Status& obstacle() const override { return none_; }
  [[nodiscard]] Expected<bool> is_captured(void* stream) const override;
  Status start(void* stream) override;
  Expected<bool> advance() override;
  [[nodiscard]] Status check() const override;

 private:
  enum class Step { none, call, launch };  // of a start: NCCL is to be called; has to launch

  // What comes next on `stream` comes after the last start, which may have been on another one.
  Status follow_last(void* stream) const;
  Status pack();
  Status unpack();
  Expected<bool> take_steps();
  Expected<bool> call();
  Status finish_start();
  // Not yet, or too late.
  [[nodiscard]] Expected<bool> not_yet() const;
  Status convert(const TensorCopy& copy, double scale);
  // For the destructor.
  void outlast_start();
  void outlast_run();

  const Gpu& gpu_;
  const DeviceReference device_;
  const std::shared_ptr<CallersCommunicator> communicator_;
  const Reduction reduction_;
  const NcclPlan plan_;
  const Piece piece_;
  DeviceMemory buffer_;
  TransferCounters& counters_;
  const Status none_;
  std::shared_ptr<GpuEvent> last_;  // end of the last start that was not captured
  void* last_stream_ = nullptr;

  // --- The start that is under way
  Step step_ = Step::none;
  void* stream_ = nullptr;
  bool is_captured_ = false;
  std::shared_ptr<GpuEvent> before_;
  Time begin_{};
};

// Through the host's memory, which the engine arranges each time.
class StagedReduction final : public DeviceReduction {
 public:
  StagedReduction(const Gpu& gpu, Status why) : device_(gpu.device), why_(std::move(why)) {}

  [[nodiscard]] const Status& obstacle() const override { return why_; }
  [[nodiscard]] Expected<bool> is_captured(void* stream) const override;
  Status start(void*) override { return why_; }
  Expected<bool> advance() override { return true; }
  [[nodiscard]] Status check() const override { return {}; }

 private:
  const DeviceReference device_;
  const Status why_;
};

}  // namespace rueda
