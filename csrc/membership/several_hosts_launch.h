// Ranks that srun, torchrun or another program has started on several hosts: where they meet, over
// TCP, without Rueda's launcher and without MPI.
#pragma once

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

// `launch` as a rendezvous at rank 0's host, where it is one that nothing else can form:
// - a step of srun without PMI and PMIx: at MASTER_ADDR, or the first of SLURM_STEP_NODELIST;
// - ranks of torchrun, or of a program that sets RANK and WORLD_SIZE: at MASTER_ADDR, where
//   MASTER_PORT is set as well. Its port itself is torch's store's.
// Else `launch` itself; and as one that cannot be formed, with the remedy, where RUEDA_SECRET is
// missing or short.
//
// Rank 0 listens at the first free one of a few ports, and the others try them in turn. The ports
// follow from the job, the step and the attempt; so does, with RUEDA_SECRET, the secret that both
// sides prove: who answers at a port, and belongs to another job or attempt, is passed by. As the
// attempt counts SLURM_RESTART_COUNT. torchrun's TORCHELASTIC_RESTART_COUNT does not: an agent
// counts the restarts that it has asked for itself, so they differ between hosts. torchrun ends the
// ranks of an attempt on all hosts before it starts those of the next, but for those of an agent
// that has been killed: these stop to look for rank 0, which may be that of a later attempt.
[[nodiscard]] Launch meet_across_hosts(Launch launch, const Environment& environment);

}  // namespace rueda
