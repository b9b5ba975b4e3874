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

// Through NCCL: at most two kernel launches and one call, all of which a CUDA graph can capture.
// Their memory is allocated in advance, and nothing is asked of the GPU while a stream is captured.
// A start is in the stream once NCCL has done its part; the first one has to wait for all ranks.
class PersistentReduction final : public DeviceReduction {
 public:
  // `buffer`: holds all elements in the reduction's wire type, if it has one. `gpu` and `counters`
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
  enum class Step { none, call, launch };  // of a start: call NCCL next; NCCL is still launching

  // Orders what comes next on `stream` after the last start, even if that was on another stream.
  Status follow_last(void* stream) const;
  Status pack();
  Status unpack();
  Expected<bool> take_steps();
  Expected<bool> call();
  Status finish_start();
  // False if still in progress, an error if it timed out.
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

  // --- The start in progress
  Step step_ = Step::none;
  void* stream_ = nullptr;
  bool is_captured_ = false;
  std::shared_ptr<GpuEvent> before_;
  Time begin_{};
};

// Through host memory. The engine runs each start as an operation.
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
