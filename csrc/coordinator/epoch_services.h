// What outlives an epoch, and what the parts of it use: the runtime's.
#pragma once

#include <functional>

#include "coordinator/command_queue.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/metrics.h"
#include "coordinator/timeline.h"
#include "core/options.h"
#include "core/status.h"

namespace rueda {

// All but `on_failure` is referred to.
struct EpochServices {
  const Options& options;
  CommandQueue& commands;
  Metrics& metrics;
  Timeline& timeline;
  FlightRecorder& recorder;
  std::function<void(const Status&)> on_failure = {};  // once, when the epoch breaks
};

}  // namespace rueda
