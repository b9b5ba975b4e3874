// A collective on tensors of GPUs, in both of the ways in which it can go.
#pragma once

#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"

namespace rueda {

// The steps stand in the order in which they are taken. `way` is the same in all of them.
class GpuTask {
 public:
  enum class Way { nccl, staged };

  virtual ~GpuTask() = default;

  // Whether NCCL can do it with the results that Rueda promises; the same on all ranks.
  [[nodiscard]] virtual bool suits_nccl(const GpuLane& gpu) const = 0;
  // What the host has to do before memory is reserved; null where that is nothing.
  [[nodiscard]] virtual std::unique_ptr<Operation> prepare(GpuLane&, const Lane&, Backend&, Way) {
    return nullptr;
  }
  // Gets what memory it needs, other than what was allocated before. Nothing where all ranks are
  // known to have it; else whether this one has, of which the others are told.
  [[nodiscard]] virtual std::optional<Status> reserve(GpuLane&, Way) { return std::nullopt; }
  // Then: all ranks have it, or not all, and the operation fails on each of them. enqueue() is
  // called once NCCL's communicator is ready again.
  virtual Status keep(GpuLane&, Way) { return {}; }
  virtual void give_back(GpuLane&) {}
  // Enqueues what comes before NCCL's work.
  virtual Status precede(GpuLane&, const Lane&) { return {}; }
  // Calls NCCL. What NCCL still sets up is not in the stream when this returns.
  virtual Status enqueue(GpuLane& gpu, const Lane& lane) = 0;
  // Whether NCCL has done what it was called for.
  [[nodiscard]] virtual Expected<bool> is_launched(const GpuLane& gpu) const {
    return gpu.communicator()->poll();
  }
  // Whether enqueue() failed in the same way on all ranks, before it enqueued anything.
  [[nodiscard]] virtual bool failed_everywhere() const { return false; }
  // Enqueues what comes after it, once NCCL's work is in the stream.
  virtual Status conclude(GpuLane&, const Lane&) { return {}; }
  // Through the host's memory: goes on without blocking, and tells whether anything moved.
  virtual Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) = 0;
  // Whether all of it has been enqueued.
  [[nodiscard]] virtual bool is_staged() const = 0;
  // What the host does at the moment; null where that is nothing.
  [[nodiscard]] virtual const Operation* on_host() const = 0;
};

}  // namespace rueda
