// Where ranks meet that srun, torchrun or another program started on one host, without Rueda's
// launcher.
#pragma once

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

// Turns `launch` into a rendezvous at a Unix socket if the environment shows that all its ranks are
// on one host and that neither PMI nor PMIx is offered; otherwise returns it unchanged. The ranks
// are on one host if an srun step uses one node, LOCAL_WORLD_SIZE equals WORLD_SIZE, or MASTER_ADDR
// is a loopback address.
//
// All ranks derive the socket's name from values that only their attempt of the job has in common,
// and from RUEDA_SECRET if set: two jobs, two steps of a job, and a restarted step and its
// predecessor get different names. As with any Unix socket, processes of other users are not
// admitted.
[[nodiscard]] Launch meet_on_one_host(Launch launch, const Environment& environment);

}  // namespace rueda
