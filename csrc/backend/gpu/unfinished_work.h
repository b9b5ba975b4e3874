// Work enqueued on a GPU that is not done.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backend/gpu/gpu_event.h"
#include "core/clock.h"

namespace rueda {

class UnfinishedWork {
 public:
  using Inputs = std::vector<std::shared_ptr<DeviceEvent>>;

  // `event`: the end of the work. `inputs`: events that it follows.
  void remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now);
  [[nodiscard]] bool is_empty() const { return parts_.empty(); }
  void clear() { parts_.clear(); }
  // Forgets what is done. Returns how long the first remaining work has been running, counted from
  // the look() that found its inputs complete; an error if it failed.
  [[nodiscard]] Expected<Duration> look(Time now);
  // Forgets everything. Unfinished work fails with `reason`; its events are returned.
  [[nodiscard]] std::vector<std::shared_ptr<GpuEvent>> give_up(const Status& reason);

 private:
  struct Part {
    std::shared_ptr<GpuEvent> event;
    Inputs inputs;
    Time since;  // valid once `inputs` is empty
  };
  std::deque<Part> parts_;
};

}  // namespace rueda
