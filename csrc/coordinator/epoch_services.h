// What outlives an epoch and is used by its parts; owned by the runtime.
#pragma once

#include <functional>

#include "coordinator/command_queue.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/long_waits.h"
#include "coordinator/metrics.h"
#include "coordinator/timeline.h"
#include "core/options.h"
#include "core/status.h"

namespace rueda {

// Holds references to everything but `on_failure`.
struct EpochServices {
  const Options& options;
  CommandQueue& commands;
  Metrics& metrics;
  Timeline& timeline;
  FlightRecorder& recorder;
  const LongWaits& long_waits;
  std::function<void(const Status&)> on_failure = {};  // once, when the epoch breaks
};

}  // namespace rueda
