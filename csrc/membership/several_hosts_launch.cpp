#include "membership/several_hosts_launch.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/strings.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/launch_variables.h"
#include "transport/key.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr int port_count = 8;
// Below the ports that Linux uses for outgoing connections (ip_local_port_range).
constexpr std::uint32_t first_port = 20'000;
constexpr std::uint32_t port_range = 12'000;

constexpr auto how_to_give_a_secret =
    "RUEDA_SECRET, a random text of at least 16 characters that is the same on all ranks and that "
    "nobody else knows (export RUEDA_SECRET=$(openssl rand -hex 32) before the job is started), or "
    "RUEDA_SECRET_FILE, a file that holds it";

struct Master {
  std::string host;
  std::string spread;   // "2 nodes", "several hosts"
  std::string correct;  // what to do if it is not rank 0's host
  std::string start_otherwise;
  Key job;  // known to everybody, common only to this attempt of this job
};

std::vector<std::string> addresses_of(const Master& master) {
  std::vector<std::string> addresses;
  for (int index = 0; index < port_count; ++index) {
    const Digest digest = master.job.proof({"port", std::to_string(index)});
    std::uint32_t number = 0;
    static_assert(sizeof digest >= sizeof number);
    std::memcpy(&number, digest.data(), sizeof number);
    addresses.push_back(join_tcp(master.host, static_cast<int>(first_port + number % port_range)));
  }
  return addresses;
}

Launch meet(Launch launch, const Environment& environment, const Master& master) {
  const std::string secret = value_of(environment, "RUEDA_SECRET");
  if (secret.size() < min_secret_length) {
    launch.kind = LaunchKind::foreign;
    launch.problem =
        str(launch.launcher, " started this process as one of ", launch.size, " ranks on ",
            master.spread, " (", launch.evidence, "), and to meet over TCP they need ",
            secret.empty() ? "" : str("another secret than the one given, which is too short: "),
            how_to_give_a_secret, "; or ", master.start_otherwise);
    return launch;
  }
  launch.kind = LaunchKind::rendezvous;
  launch.problem.clear();
  launch.remedy =
      str("if that is not rank 0's host, ", master.correct, "; or ", master.start_otherwise);
  launch.secret = Key(secret).proof_text({"rueda several hosts", master.job.proof_text({"job"})});
  launch.other_addresses = addresses_of(master);
  launch.address = launch.other_addresses.front();
  launch.other_addresses.erase(launch.other_addresses.begin());
  return launch;
}

// Depends on the launcher's name as well.
Key job_key(const Launch& launch, const Environment& environment,
            std::initializer_list<std::string_view> variables) {
  return with_values(Key("rueda several hosts").derive({launch.launcher}), environment, variables);
}

}  // namespace

Launch meet_across_hosts(Launch launch, const Environment& environment) {
  if (launch.size < 2 || !launch.is_consistent) return launch;
  const std::string given = master_of(environment);
  if (const auto nodes = nodes_of_plain_step(launch, environment); nodes.ok()) {
    const bool is_given = !given.empty() && !is_loopback_name(given);
    const Master master{
        is_given ? given : nodes.value().front(), str(nodes.value().size(), " nodes"),
        is_given ? "correct MASTER_ADDR" : "name its address in MASTER_ADDR",
        "start with srun --mpi=pmi2, srun --mpi=pmix or `rueda run -H`",
        job_key(launch, environment,
                {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})};
    return meet(std::move(launch), environment, master);
  }
  const bool tells_master = launch.launcher == "torchrun" || launch.launcher == "the launcher";
  if (launch.kind != LaunchKind::foreign || !tells_master || given.empty() ||
      value_of(environment, "MASTER_PORT").empty()) {
    return launch;
  }
  const Master master{given, "several hosts", "correct MASTER_ADDR",
                      "start with `rueda run -H` or `rueda run --nodes`",
                      job_key(launch, environment, {"MASTER_PORT", "TORCHELASTIC_RUN_ID"})};
  launch.ends_with_agent = launch.launcher == "torchrun";
  return meet(std::move(launch), environment, master);
}

}  // namespace rueda
