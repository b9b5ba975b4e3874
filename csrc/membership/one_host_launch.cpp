#include "membership/one_host_launch.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "core/strings.h"
#include "membership/nodelist.h"
#include "transport/key.h"

namespace rueda {

namespace {

// What tells one attempt of a job from all others of the host.
constexpr std::array<std::string_view, 4> of_torchrun{
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"};
constexpr std::array<std::string_view, 4> of_slurm{"SLURM_CLUSTER_NAME", "SLURM_JOB_ID",
                                                   "SLURM_STEP_ID", "SLURM_RESTART_COUNT"};

std::string value_of(const Environment& environment, std::string_view variable) {
  return environment(variable).value_or("");
}

bool has(const Environment& environment, std::string_view variable) {
  return !value_of(environment, variable).empty();
}

// Not where PMIx or PMI are offered, nor for a component of a heterogeneous job, which counts its
// own tasks only.
bool is_plain_step_on_one_host(const Environment& environment) {
  for (const char* other : {"PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD", "SLURM_HET_SIZE"}) {
    if (has(environment, other)) return false;
  }
  if (!has(environment, "SLURM_JOB_ID")) return false;
  const auto nodes = expand_node_list(value_of(environment, "SLURM_STEP_NODELIST"));
  return nodes.ok() && nodes.value().size() == 1;
}

bool is_torchrun_on_one_host(const Environment& environment) {
  return has(environment, "MASTER_PORT") && has(environment, "LOCAL_WORLD_SIZE") &&
         value_of(environment, "LOCAL_WORLD_SIZE") == value_of(environment, "WORLD_SIZE");
}

Launch meet(Launch launch, const Environment& environment,
            std::span<const std::string_view, 4> variables) {
  launch.secret = value_of(environment, "RUEDA_SECRET");
  const std::string name =
      Key(launch.secret)
          .proof_text({"rueda one host", launch.launcher, value_of(environment, variables[0]),
                       value_of(environment, variables[1]), value_of(environment, variables[2]),
                       value_of(environment, variables[3])});
  launch.kind = LaunchKind::rendezvous;
  launch.address = "unix:@rueda-" + name;
  launch.problem.clear();
  return launch;
}

}  // namespace

Launch meet_on_one_host(Launch launch, const Environment& environment) {
  if (launch.size < 2 || launch.rank >= launch.size) return launch;
  if (launch.launcher == "srun" && launch.kind == LaunchKind::mpi &&
      is_plain_step_on_one_host(environment)) {
    return meet(std::move(launch), environment, of_slurm);
  }
  if (launch.launcher == "torchrun" && is_torchrun_on_one_host(environment)) {
    return meet(std::move(launch), environment, of_torchrun);
  }
  return launch;
}

}  // namespace rueda
