// Who started this process, and is it one of several? Read from the environment alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace rueda {

enum class LaunchKind : std::uint8_t {
  none,        // no launcher says anything: a world of one
  rendezvous,  // `rueda run` without MPI: the ranks meet at an address
  mpi,         // mpirun, or another launcher that speaks PMI
  foreign,     // there are more ranks, but nothing here can form their world
};

struct Launch {
  LaunchKind kind = LaunchKind::none;
  int rank = 0;
  int size = 1;               // 0 where the launcher does not tell
  std::string launcher = {};  // "mpirun", "torchrun", ... for messages
  std::string evidence = {};  // the variables that told, e.g. "OMPI_COMM_WORLD_SIZE=4"
  std::string address = {};   // of the rendezvous
  // Rank 0 serves at the first free one of these and `address`, see several_hosts_launch.h.
  std::vector<std::string> other_addresses = {};
  // torchrun: a rank whose agent is gone is of an attempt that is over.
  bool ends_with_agent = false;
  bool is_served = false;    // by the launcher: RUEDA_RENDEZVOUS_STORE is `address`
  int listener = -1;         // a descriptor that listens there: RUEDA_RENDEZVOUS_LISTENER
  std::string secret = {};   // of the job: RUEDA_SECRET; goes into no message
  std::string problem = {};  // foreign: why no world can be formed, and what to do
  std::string remedy = {};   // rendezvous: what to do where the ranks do not meet
};

// Recognises, innermost first: RUEDA_RANK, RUEDA_SIZE and RUEDA_RENDEZVOUS, with RUEDA_SECRET,
// RUEDA_RENDEZVOUS_STORE and RUEDA_RENDEZVOUS_LISTENER;
// torchrun (TORCHELASTIC_RUN_ID); Open MPI; PMI_RANK and PMI_SIZE (of Intel MPI where I_MPI_MPIRUN
// is set, of Hydra where MPI_LOCALNRANKS is, of srun with PMI-2 where SLURM_STEP_ID is); a step of
// Slurm with more than one task; PMIX_RANK; horovodrun; RANK and WORLD_SIZE. A launcher whose
// variables are incomplete or no numbers is foreign, with that as the problem.
[[nodiscard]] Launch detect_launch(const Environment& environment);

// For a process that no launcher claims: a sentence where the environment tells of several tasks or
// pods (Slurm, PBS, LSF, Kubernetes, AWS Batch, torchrun's PET_ variables, WORLD_SIZE), each of
// which would train by itself; else nothing.
[[nodiscard]] std::string hint_at_more_ranks(const Environment& environment);

}  // namespace rueda
