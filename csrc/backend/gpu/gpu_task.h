// A collective on GPU tensors, with both ways of running it.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"

namespace rueda {

// The steps are declared in the order in which they run. `way` is the same in all of them.
class GpuTask {
 public:
  enum class Way { nccl, staged };

  virtual ~GpuTask() = default;

  // Whether NCCL can do it with the results that Rueda promises. Same on all ranks.
  [[nodiscard]] virtual bool suits_nccl(const GpuLane& gpu) const = 0;
  // Host operation to run before memory is reserved; null if none.
  [[nodiscard]] virtual std::unique_ptr<Operation> prepare(GpuLane&, const Lane&, Backend&, Way) {
    return nullptr;
  }
  // Allocates what was not allocated before. Returns nullopt if all ranks are known to have their
  // memory; otherwise whether this rank does, which the other ranks are told.
  [[nodiscard]] virtual std::optional<Status> reserve(GpuLane&, Way) { return std::nullopt; }
  // Called next: keep() if all ranks have the memory; give_back() if not, and the operation fails
  // on all. enqueue() is called once NCCL's communicator is ready again.
  virtual Status keep(GpuLane&, Way) { return {}; }
  virtual void give_back(GpuLane&) {}
  // Enqueues the work before NCCL's.
  virtual Status precede(GpuLane&, const Lane&) { return {}; }
  // Calls NCCL. NCCL may still be setting up work that is not in the stream when this returns.
  virtual Status enqueue(GpuLane& gpu, const Lane& lane) = 0;
  // Whether NCCL has completed the call.
  [[nodiscard]] virtual Expected<bool> is_launched(const GpuLane& gpu) const {
    return gpu.communicator()->poll();
  }
  // Whether enqueue() failed the same way on all ranks, before it enqueued anything.
  [[nodiscard]] virtual bool failed_everywhere() const { return false; }
  // Enqueues the work after NCCL's, which is in the stream by now.
  virtual Status conclude(GpuLane&, const Lane&) { return {}; }
  // Continues through host memory without blocking; returns whether anything moved.
  virtual Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) = 0;
  // Whether all work has been enqueued.
  [[nodiscard]] virtual bool is_staged() const = 0;
  // What the host is doing at the moment; null if nothing.
  [[nodiscard]] virtual const Operation* on_host() const = 0;
};

}  // namespace rueda
