#include "backend/gpu/unfinished_work.h"

#include <utility>

namespace rueda {

void UnfinishedWork::remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now) {
  parts_.push_back({std::move(event), std::move(inputs), now});
}

Expected<Duration> UnfinishedWork::look(Time now) {
  while (!parts_.empty()) {
    Part& first = parts_.front();
    const auto reached = first.event->reached();
    if (!reached) return reached.status();
    if (!*reached) {
      // The application's own work may take any time, even between two looks.
      if (!first.inputs.empty()) first.since = now;
      std::erase_if(first.inputs, [](const auto& input) { return input->is_over(); });
      return now - first.since;
    }
    parts_.pop_front();
    // The next one could not begin before now.
    if (!parts_.empty()) parts_.front().since = now;
  }
  return Duration::zero();
}

std::vector<std::shared_ptr<GpuEvent>> UnfinishedWork::give_up(const Status& reason) {
  std::vector<std::shared_ptr<GpuEvent>> given_up;
  for (const Part& part : std::exchange(parts_, {})) {
    const auto reached = part.event->reached();
    if (reached && *reached) continue;
    part.event->fail(reason);
    given_up.push_back(part.event);
  }
  return given_up;
}

}  // namespace rueda
