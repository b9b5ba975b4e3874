// Chooses how this process meets the other ranks, and does so.
#pragma once

#include <memory>

#include "core/options.h"
#include "core/status.h"
#include "membership/launch.h"
#include "membership/mpi_plugin.h"
#include "membership/world.h"
#include "transport/bootstrap.h"

namespace rueda {

struct OpenedBootstrap {
  Launch launch;
  std::unique_ptr<Bootstrap> bootstrap;
  MpiPlugin* mpi = nullptr;  // initialised; set if the ranks met through MPI
  // For form_world(): MPI's bulk transport, or why there is none.
  MpiCapability mpi_transport;
};

// Uses options.bootstrap. "auto" takes the rendezvous, PMI or MPI if a launcher's variables say so,
// MPI if the application has initialised it, and otherwise a world of one.
// ErrorCode::initialization if the launcher promises ranks that do not meet: a world is never
// silently smaller than what was started. Waits up to options.init_timeout.
[[nodiscard]] Expected<OpenedBootstrap> open_bootstrap(const Options& options,
                                                       const Environment& environment);

}  // namespace rueda
