// A collective on GPU tensors as an operation of the engine: waits for its turn, agrees with the
// other ranks on the path unless that has been settled, and enqueues the task.
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
  // `gpu`: null if this rank has no GPU, which the other ranks are told. `wanted`: the option
  // gpu_backend, used if the path is not chosen yet. `inputs`: events that the work must follow.
  // `results`: set if ranks had to allocate the memory for the result; whether this rank succeeded.
  GpuOperation(GpuLane* gpu, const Lane& lane, Backend& host, const std::string& wanted,
               std::unique_ptr<GpuTask> task, GpuLane::Inputs inputs,
               std::optional<Status> results);
  // If destroyed midway: waits until nothing that was enqueued accesses the tensors.
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
  // Adopts the path that follows from the infos.
  Status settle();
  bool prepare();
  void reserve();
  bool agree_on_memory();
  // Whether the host's work has ended successfully.
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
  std::unique_ptr<Operation> host_operation_;  // for the agreement, or before enqueuing
  // The work before and after NCCL's, and the final event.
  struct Surroundings;
  std::shared_ptr<Surroundings> surroundings_;  // holds the inputs from then on
  GpuPeerInfo info_;
  std::vector<GpuPeerInfo> infos_;
  std::shared_ptr<GpuEvent> event_;
  std::vector<Phase> phases_;
  bool failed_everywhere_ = false;
  Status status_;
};

}  // namespace rueda
