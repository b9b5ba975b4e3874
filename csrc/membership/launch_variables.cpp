#include "membership/launch_variables.h"

#include "membership/nodelist.h"

namespace rueda {

std::string value_of(const Environment& environment, std::string_view variable) {
  return environment(variable).value_or("");
}

std::string master_of(const Environment& environment) {
  std::string host = value_of(environment, "MASTER_ADDR");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

Key with_values(const Key& key, const Environment& environment,
                std::initializer_list<std::string_view> variables) {
  Key derived = key;
  for (const std::string_view variable : variables) {
    derived = derived.derive({variable, value_of(environment, variable)});
  }
  return derived;
}

Expected<std::vector<std::string>> nodes_of_plain_step(const Launch& launch,
                                                       const Environment& environment) {
  const Status none(ErrorCode::invalid_argument, "not a step of srun without PMI and PMIx");
  if (launch.launcher != "srun" || launch.kind != LaunchKind::mpi) return none;
  for (const char* other : {"PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD", "SLURM_HET_SIZE"}) {
    if (!value_of(environment, other).empty()) return none;
  }
  if (value_of(environment, "SLURM_JOB_ID").empty()) return none;
  return expand_node_list(value_of(environment, "SLURM_STEP_NODELIST"));
}

bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

}  // namespace rueda
