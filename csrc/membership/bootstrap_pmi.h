// How ranks find each other through PMI-1, which MPICH's and Intel MPI's Hydra, Flux and Slurm
// (srun --mpi=pmi2) offer to every process that they start: put, get and barrier are its very
// words, and no MPI is needed. All that speak PMI-2 over this descriptor speak PMI-1 too: the
// first line decides (Slurm, src/plugins/mpi/pmi2/agent.c; MPICH, src/pm/hydra).
//
// Lines of text over the descriptor PMI_FD, "cmd=put kvsname=K key=K value=V". Values are sent as
// hexadecimal digits, cut into pieces of the length that the other side takes.
// The conversation ends with the process, and the process manager is told so; an MPI library that
// the program initialises afterwards finds it begun. (MPICH, src/pmi; the protocol's version
// is 1.1.)
#pragma once

#include <memory>

#include "core/clock.h"
#include "core/options.h"
#include "core/status.h"
#include "membership/launch.h"
#include "transport/bootstrap.h"

namespace rueda {

// Whether `launch` is of a process manager that speaks PMI-1 over PMI_FD.
[[nodiscard]] bool offers_pmi(const Launch& launch, const Environment& environment);

// ErrorCode::initialization where the process manager does not answer as it should until the
// deadline. One bootstrap of a process at a time, and all ranks open as many.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> open_pmi(const Launch& launch,
                                                            const Environment& environment,
                                                            Time deadline);

}  // namespace rueda
