// Who started this process, and is it one of several? Determined from the environment alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace rueda {

enum class LaunchKind : std::uint8_t {
  none,        // no launcher: a world of one
  rendezvous,  // `rueda run` without MPI: the ranks meet at an address
  mpi,         // mpirun, or another launcher that speaks PMI
  foreign,     // there are more ranks, but their world cannot be formed here
};

struct Launch {
  LaunchKind kind = LaunchKind::none;
  int rank = 0;
  int size = 1;               // 0 if the launcher does not say
  bool is_consistent = true;  // foreign: whether rank and size were told, and fit each other
  std::string launcher = {};  // "mpirun", "torchrun", ... for messages
  std::string evidence = {};  // the variables found, e.g. "OMPI_COMM_WORLD_SIZE=4"
  std::string address = {};   // of the rendezvous
  // Rank 0 serves at the first free one of `address` and these, see several_hosts_launch.h.
  std::vector<std::string> other_addresses = {};
  // torchrun: a rank whose agent is gone belongs to an attempt that has ended.
  bool ends_with_agent = false;
  // Whether another launcher has started it within a rank of `rueda run`, whose variables and
  // launcher do not concern it.
  bool is_within_rank = false;
  bool is_served = false;    // by the launcher: RUEDA_RENDEZVOUS_STORE is `address`
  int listener = -1;         // a descriptor that listens there: RUEDA_RENDEZVOUS_LISTENER
  std::string secret = {};   // of the job: RUEDA_SECRET; never part of a message
  std::string problem = {};  // foreign: why no world can be formed, and what to do
  std::string remedy = {};   // rendezvous: what to do if the ranks do not meet
};

// Recognises, innermost first: RUEDA_RANK, RUEDA_SIZE and RUEDA_RENDEZVOUS, with RUEDA_SECRET,
// RUEDA_RENDEZVOUS_STORE and RUEDA_RENDEZVOUS_LISTENER; torchrun (TORCHELASTIC_RUN_ID); Open MPI;
// PMI_RANK and PMI_SIZE (from Intel MPI if I_MPI_MPIRUN is set, Hydra if MPI_LOCALNRANKS is, srun
// with PMI-2 if SLURM_STEP_ID is); a Slurm step with more than one task; PMIX_RANK; horovodrun;
// RANK and WORLD_SIZE. A launcher whose variables are incomplete or not numbers counts as foreign,
// with that as the problem. If `rueda run` serves that rendezvous, what torchrun, Open MPI, PMI,
// Slurm or PMIx has set comes from within one of its ranks, and counts if it is of several
// processes.
[[nodiscard]] Launch detect_launch(const Environment& environment);

// For a process without a launcher: a sentence if the environment shows several tasks or pods
// (Slurm, PBS, LSF, Kubernetes, AWS Batch, torchrun's PET_ variables, WORLD_SIZE), each of which
// would train alone; otherwise empty.
[[nodiscard]] std::string hint_at_more_ranks(const Environment& environment);

}  // namespace rueda
