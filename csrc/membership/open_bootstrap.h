// Chooses how this process meets the other ranks, and meets them.
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
  MpiPlugin* mpi = nullptr;  // initialised, where the ranks met through MPI
  // For form_world(): MPI's bulk transport, or why there is none.
  MpiCapability mpi_transport;
};

// By options.bootstrap; "auto" takes the rendezvous, PMI or MPI where a launcher's variables say
// so, MPI where the application has initialised it, and a world of one otherwise.
// ErrorCode::initialization where the launcher promises ranks that do not come together: a world is
// never silently smaller than what was started. Waits until options.init_timeout.
[[nodiscard]] Expected<OpenedBootstrap> open_bootstrap(const Options& options,
                                                       const Environment& environment);

}  // namespace rueda
