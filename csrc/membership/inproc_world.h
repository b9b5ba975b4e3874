// Worlds inside one process.
#pragma once

#include "membership/world.h"
#include "transport/inproc.h"

namespace rueda {

// The view of `rank` on a world of threads: one host, one process.
[[nodiscard]] World inproc_world(InprocHub& hub, int rank);

// A world of one rank; needs no peers, sockets or MPI.
[[nodiscard]] World solo_world();

}  // namespace rueda
