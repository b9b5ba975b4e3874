// What has been enqueued on a GPU and is not done.
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

  // `event`: its end. `inputs`: what had to come first.
  void remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now);
  [[nodiscard]] bool is_empty() const { return parts_.empty(); }
  void clear() { parts_.clear(); }
  // Forgets what is done. Returns for how long the first of what is left has been under way: since
  // the look that found its inputs there. An error where it failed.
  [[nodiscard]] Expected<Duration> look(Time now);
  // Forgets everything; what is not done fails with `reason`, and is returned.
  [[nodiscard]] std::vector<std::shared_ptr<GpuEvent>> give_up(const Status& reason);

 private:
  struct Part {
    std::shared_ptr<GpuEvent> event;
    Inputs inputs;
    Time since;  // counts once there are no inputs any more
  };
  std::deque<Part> parts_;
};

}  // namespace rueda
