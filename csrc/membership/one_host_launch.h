// Ranks that srun, torchrun or another program has started on one host: where they meet, without
// Rueda's launcher.
#pragma once

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

// `launch` as a rendezvous at a Unix socket, where the environment tells that all its ranks are on
// one host and that no PMI or PMIx is offered; else `launch` itself. They are where a step of srun
// is on one node, LOCAL_WORLD_SIZE is WORLD_SIZE, or MASTER_ADDR is a loopback.
//
// All ranks derive the socket's name from what only their attempt of the job has in common, and
// from RUEDA_SECRET where it is set: two jobs, two steps of one job, or a restarted step and the
// ranks before it have different names. As with any Unix socket, processes of other users are let
// in nowhere.
[[nodiscard]] Launch meet_on_one_host(Launch launch, const Environment& environment);

}  // namespace rueda
