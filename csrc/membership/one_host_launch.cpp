#include "membership/one_host_launch.h"

#include <utility>

#include "membership/launch_variables.h"
#include "transport/key.h"

namespace rueda {

namespace {

bool is_step_on_one_node(const Launch& launch, const Environment& environment) {
  const auto nodes = nodes_of_plain_step(launch, environment);
  return nodes.ok() && nodes.value().size() == 1;
}

Launch meet(Launch launch, const Environment& environment,
            std::initializer_list<std::string_view> variables) {
  launch.secret = value_of(environment, "RUEDA_SECRET");
  const Key key = with_values(Key(launch.secret), environment, variables);
  launch.kind = LaunchKind::rendezvous;
  launch.address = "unix:@rueda-" + key.proof_text({"rueda one host", launch.launcher});
  launch.problem.clear();
  return launch;
}

}  // namespace

Launch meet_on_one_host(Launch launch, const Environment& environment) {
  if (launch.size < 2 || !launch.is_consistent) return launch;
  if (is_step_on_one_node(launch, environment)) {
    return meet(std::move(launch), environment,
                {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"});
  }
  if (launch.kind != LaunchKind::foreign || value_of(environment, "MASTER_PORT").empty()) {
    return launch;
  }
  if (launch.launcher == "torchrun" &&
      value_of(environment, "LOCAL_WORLD_SIZE") == value_of(environment, "WORLD_SIZE")) {
    return meet(
        std::move(launch), environment,
        {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  }
  const bool tells_master = launch.launcher == "torchrun" || launch.launcher == "the launcher";
  if (tells_master && is_loopback_name(master_of(environment))) {
    // torchrun's agents count restarts differently, see several_hosts_launch.h.
    return meet(std::move(launch), environment, {"MASTER_PORT", "TORCHELASTIC_RUN_ID"});
  }
  return launch;
}

}  // namespace rueda
