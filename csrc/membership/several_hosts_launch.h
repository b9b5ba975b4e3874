// Where ranks meet that srun, torchrun or another program started on several hosts: over TCP,
// without Rueda's launcher and without MPI.
#pragma once

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

// Turns `launch` into a rendezvous on rank 0's host if nothing else can form its world:
// - an srun step without PMI and PMIx: at MASTER_ADDR, or the first of SLURM_STEP_NODELIST;
// - ranks of torchrun, or of a program that sets RANK and WORLD_SIZE: at MASTER_ADDR, if
//   MASTER_PORT is set as well. That port itself belongs to torch's store.
// Otherwise returns it unchanged. If RUEDA_SECRET is missing or short, the result is foreign, with
// the remedy.
//
// Rank 0 listens on the first free one of a few ports, and the others try them in turn. The ports
// derive from the job, the step and the attempt. So does, with RUEDA_SECRET, the secret that both
// sides prove; whatever answers for another job or attempt is skipped. SLURM_RESTART_COUNT
// identifies the attempt. torchrun's TORCHELASTIC_RESTART_COUNT does not: an agent counts only the
// restarts it asked for itself, so hosts differ. torchrun ends the ranks of an attempt on all hosts
// before it starts the next, except those of an agent that was killed. These stop looking for rank
// 0, which may belong to a later attempt.
[[nodiscard]] Launch meet_across_hosts(Launch launch, const Environment& environment);

}  // namespace rueda
