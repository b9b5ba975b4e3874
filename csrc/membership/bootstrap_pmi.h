// Bootstrap over PMI-1, which MPICH's and Intel MPI's Hydra, Flux and Slurm (srun --mpi=pmi2) offer
// to every process they start. It has exactly put, get and barrier, and no MPI is needed. All that
// speak PMI-2 over this descriptor also speak PMI-1: the first line decides (Slurm,
// src/plugins/mpi/pmi2/agent.c; MPICH, src/pm/hydra).
//
// Text lines over the descriptor PMI_FD: "cmd=put kvsname=K key=K value=V". Values are sent as
// hexadecimal digits, in pieces of the length that the other side accepts. The conversation ends
// with the process, and the process manager is told; an MPI library that the program initialises
// later finds it already begun. (MPICH, src/pmi; the protocol's version is 1.1.)
#pragma once

#include <memory>

#include "core/clock.h"
#include "core/options.h"
#include "core/status.h"
#include "membership/launch.h"
#include "transport/bootstrap.h"

namespace rueda {

// Whether `launch` comes from a process manager that speaks PMI-1 over PMI_FD.
[[nodiscard]] bool offers_pmi(const Launch& launch, const Environment& environment);

// ErrorCode::initialization if the process manager does not answer properly by the deadline. One
// bootstrap per process at a time; all ranks must open the same number.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> open_pmi(const Launch& launch,
                                                            const Environment& environment,
                                                            Time deadline);

}  // namespace rueda
