// What an all-reduction of tensors of GPUs does where the host takes part in it.
#pragma once

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"

namespace rueda {

class HostWork {
 public:
  virtual ~HostWork() = default;
  // Goes on without blocking, and tells whether anything moved.
  virtual Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host) = 0;
  // Whether all of it has been enqueued.
  [[nodiscard]] virtual bool is_done() const = 0;
  // What the host does at the moment; null where that is nothing.
  [[nodiscard]] virtual const Operation* on_host() const = 0;
  // Whether others have to come first, who are timed themselves.
  [[nodiscard]] virtual bool waits_for_others() const { return false; }
};

}  // namespace rueda
