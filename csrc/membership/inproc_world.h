// Worlds inside one process.
#pragma once

#include "membership/world.h"
#include "transport/inproc.h"

namespace rueda {

// `rank`'s part of a world of threads: one host, one process.
[[nodiscard]] World inproc_world(InprocHub& hub, int rank);

// A world of one rank, which needs no peer, no socket and no MPI.
[[nodiscard]] World solo_world();

}  // namespace rueda
