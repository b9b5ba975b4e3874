// A collective on tensors of GPUs as an operation of the engine: waits for its turn, agrees with
// the other ranks on the path where that has not happened yet, and enqueues the task.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"
#include "backend/gpu/gpu_peer_info.h"
#include "backend/gpu/gpu_task.h"
#include "backend/gpu/memory_agreement.h"

namespace rueda {

class GpuOperation final : public Operation {
 public:
  // `gpu`: null where this rank has no GPU, of which the others are told. `wanted`: the option
  // gpu_backend, for where the path is still to be chosen. `inputs`: what comes first on the GPU.
  // `results`: where ranks had to allocate what it writes, whether this one has got it.
  GpuOperation(GpuLane* gpu, const Lane& lane, Backend& host, const std::string& wanted,
               std::unique_ptr<GpuTask> task, GpuLane::Inputs inputs,
               std::optional<Status> results);
  // Given up in the middle: waits until nothing that was enqueued touches the tensors any more.
  ~GpuOperation() override;

  bool advance() override;
  [[nodiscard]] bool done() const override { return step_ == Step::done; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] bool failed_everywhere() const override { return failed_everywhere_; }
  [[nodiscard]] std::vector<int> awaited() const override;
  [[nodiscard]] bool uses_transport() const override;
  [[nodiscard]] bool must_be_polled() const override { return true; }
  [[nodiscard]] bool waits_for_its_turn() const override;
  [[nodiscard]] std::shared_ptr<DeviceEvent> finished() const override { return event_; }
  [[nodiscard]] std::vector<Phase> phases() const override { return phases_; }

 private:
  enum class Step { turn, agree, connect, prepare, memory, enqueue, launch, stage, done };

  bool take_step();
  bool take_turn();
  bool agree();
  // Takes the path that follows from the infos.
  Status settle();
  bool prepare();
  void reserve();
  bool agree_on_memory();
  // Whether what the host did is over, and was well.
  bool take_host_result();
  bool enqueue();
  bool stage();
  // Whether the communicator is connected.
  bool poll();
  bool is_launched();
  Status conclude();
  void begin(std::string_view phase);
  void finish(const Status& status);
  [[nodiscard]] const Operation* on_host() const;

  GpuLane* gpu_;
  Lane lane_;
  Backend& host_;
  const std::string& wanted_;
  const std::shared_ptr<GpuTask> task_;
  GpuLane::Inputs inputs_;
  const std::optional<Status> results_;
  bool has_enqueued_ = false;
  std::uint64_t ticket_ = 0;
  Step step_ = Step::turn;
  GpuTask::Way way_ = GpuTask::Way::staged;
  MemoryAgreement memory_;
  std::unique_ptr<Operation> host_operation_;  // of the agreement, or before enqueuing
  // What comes before and after NCCL's work, and the event at the end.
  struct Surroundings;
  std::shared_ptr<Surroundings> surroundings_;  // has the inputs from then on
  GpuPeerInfo info_;
  std::vector<GpuPeerInfo> infos_;
  std::shared_ptr<GpuEvent> event_;
  std::vector<Phase> phases_;
  bool failed_everywhere_ = false;
  Status status_;
};

}  // namespace rueda
