#include "membership/launch.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/strings.h"
#include "membership/bootstrap_pmi.h"
#include "membership/bootstrap_solo.h"
#include "membership/one_host_launch.h"
#include "membership/open_bootstrap.h"
#include "membership/secret_file.h"
#include "membership/several_hosts_launch.h"
#include "unit/contains.h"

namespace rueda::test::launch_test {

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Launch launch_of(Variables variables) {
  return detect_launch(environment_of(std::move(variables)));
}

Launch meeting_of(const Variables& variables) {
  return meet_on_one_host(launch_of(variables), environment_of(variables));
}

const Variables& torchrun() {
  static const Variables variables{{"TORCHELASTIC_RUN_ID", "none"},
                                   {"TORCHELASTIC_RESTART_COUNT", "0"},
                                   {"RANK", "1"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "localhost"},
                                   {"MASTER_PORT", "29500"}};
  return variables;
}

const Variables& srun() {
  static const Variables variables{{"SLURM_JOB_ID", "77"},
                                   {"SLURM_STEP_ID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "4"},
                                   {"SLURM_STEP_NODELIST", "n1"},
                                   {"SLURM_PROCID", "2"}};
  return variables;
}

// The variables of a torchrun job on several hosts.
const Variables& agents() {
  static const Variables variables{{"TORCHELASTIC_RUN_ID", "mine"},
                                   {"TORCHELASTIC_RESTART_COUNT", "0"},
                                   {"RANK", "1"},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "h0"},
                                   {"MASTER_PORT", "29500"},
                                   {"RUEDA_SECRET", "known to the ranks"}};
  return variables;
}

const Variables& bare() {
  static const Variables variables{{"RANK", "1"},
                                   {"WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "h0"},
                                   {"MASTER_PORT", "29500"},
                                   {"RUEDA_SECRET", "known to the ranks"}};
  return variables;
}

const Variables& step_of_nodes() {
  static const Variables variables{
      {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},
      {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NODELIST", "h[0-1]"},
      {"SLURM_PROCID", "2"},         {"RUEDA_SECRET", "known to the ranks"}};
  return variables;
}

Launch meeting_across(const Variables& variables) {
  const Environment environment = environment_of(variables);
  return meet_across_hosts(meeting_of(variables), environment);
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("launchers are recognised by their variables") {
  struct Row {
    const char* what;
    Variables variables;
    LaunchKind kind;
    int rank;
    int size;
    const char* launcher;
  };
  const std::vector<Row> table{
      {"nothing at all", {}, LaunchKind::none, 0, 1, ""},
      {"rueda run",
       {{"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "3"}, {"RUEDA_RENDEZVOUS", "127.0.0.1:5000"}},
       LaunchKind::rendezvous,
       2,
       3,
       "rueda run"},
      {"rueda run inside a batch job's MPI",
       {{"RUEDA_RANK", "0"},
        {"RUEDA_SIZE", "1"},
        {"RUEDA_RENDEZVOUS", "x:1"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_RANK", "7"}},
       LaunchKind::rendezvous,
       0,
       1,
       "rueda run"},
      {"mpirun",
       {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}},
       LaunchKind::mpi,
       3,
       4,
       "mpirun"},
      {"mpirun -np 1",
       {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
       LaunchKind::mpi,
       0,
       1,
       "mpirun"},
      {"mpirun whose daemons srun started",
       {{"OMPI_COMM_WORLD_SIZE", "16"},
        {"OMPI_COMM_WORLD_RANK", "9"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_PROCID", "1"}},
       LaunchKind::mpi,
       9,
       16,
       "mpirun"},
      {"mpirun with torch's variables beside",
       {{"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"RANK", "1"},
        {"WORLD_SIZE", "4"}},
       LaunchKind::mpi,
       1,
       4,
       "mpirun"},
      {"another PMI launcher",
       {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}},
       LaunchKind::mpi,
       1,
       2,
       "a PMI launcher"},
      {"Intel MPI",
       {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALNRANKS", "2"}, {"I_MPI_MPIRUN", "mpirun"}},
       LaunchKind::mpi,
       3,
       4,
       "Intel MPI's mpirun"},
      {"MPICH",
       {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALNRANKS", "2"}},
       LaunchKind::mpi,
       3,
       4,
       "Hydra (MPICH, Intel MPI)"},
      {"MPICH whose proxies srun started",
       {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"MPI_LOCALNRANKS", "2"}, {"SLURM_STEP_ID", "0"}},
       LaunchKind::mpi,
       3,
       4,
       "Hydra (MPICH, Intel MPI)"},
      {"srun with PMI-2",
       {{"PMI_SIZE", "4"},
        {"PMI_RANK", "3"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_PROCID", "3"}},
       LaunchKind::mpi,
       3,
       4,
       "srun"},
      {"Intel MPI's variable in a shell of its own",
       {{"I_MPI_MPIRUN", "mpirun"}},
       LaunchKind::none,
       0,
       1,
       ""},
      {"PMIx alone", {{"PMIX_RANK", "5"}}, LaunchKind::mpi, 5, 0, "a PMIx launcher"},
      {"a step of Slurm",
       {{"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_PROCID", "2"},
        {"PMIX_RANK", "2"}},
       LaunchKind::mpi,
       2,
       4,
       "srun"},
      {"an sbatch script's own shell",
       {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
       LaunchKind::none,
       0,
       1,
       ""},
      {"srun of one task",
       {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}},
       LaunchKind::none,
       0,
       1,
       ""},
      {"torchrun",
       {{"TORCHELASTIC_RUN_ID", "none"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}},
       LaunchKind::foreign,
       1,
       2,
       "torchrun"},
      {"torchrun of one",
       {{"TORCHELASTIC_RUN_ID", "none"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
       LaunchKind::none,
       0,
       1,
       ""},
      {"torchrun inside mpirun",
       {{"TORCHELASTIC_RUN_ID", "none"},
        {"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_RANK", "3"}},
       LaunchKind::foreign,
       1,
       2,
       "torchrun"},
      {"horovodrun",
       {{"HOROVOD_SIZE", "3"}, {"HOROVOD_RANK", "0"}},
       LaunchKind::foreign,
       0,
       3,
       "horovodrun"},
      {"horovodrun --mpi",
       {{"HOROVOD_SIZE", "3"},
        {"HOROVOD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "3"},
        {"OMPI_COMM_WORLD_RANK", "0"}},
       LaunchKind::mpi,
       0,
       3,
       "mpirun"},
      {"an operator that sets torch's variables",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       LaunchKind::foreign,
       1,
       2,
       "the launcher"},
      {"WORLD_SIZE alone means nothing", {{"WORLD_SIZE", "2"}}, LaunchKind::none, 0, 1, ""},
      {"empty variables count as unset",
       {{"OMPI_COMM_WORLD_SIZE", ""}, {"RUEDA_RANK", ""}},
       LaunchKind::none,
       0,
       1,
       ""},
  };
  for (const Row& row : table) {
    INFO(row.what);
    const Launch launch = launch_of(row.variables);
    CHECK(launch.kind == row.kind);
    CHECK(launch.rank == row.rank);
    CHECK(launch.size == row.size);
    CHECK(launch.launcher == row.launcher);
    CHECK(launch.problem.empty() == (row.kind != LaunchKind::foreign));
  }
}

TEST_CASE("a rendezvous is served already where the launcher says so of this very address") {
  const Variables rank{
      {"RUEDA_RANK", "0"}, {"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "unix:@here"}};
  CHECK_FALSE(launch_of(rank).is_served);
  CHECK(launch_of(with(rank, "RUEDA_RENDEZVOUS_STORE", "unix:@here")).is_served);
  // The program's own world, within a job of `rueda run`.
  CHECK_FALSE(launch_of(with(rank, "RUEDA_RENDEZVOUS_STORE", "unix:@there")).is_served);
}

TEST_CASE("a launcher of several processes within a rank of rueda run is the one that counts") {
  const Variables rank{{"RUEDA_RANK", "0"},
                       {"RUEDA_SIZE", "2"},
                       {"RUEDA_RENDEZVOUS", "unix:@here"},
                       {"RUEDA_RENDEZVOUS_STORE", "unix:@here"}};
  struct Row {
    const char* what;
    Variables more;
    int rank;
    int size;
    const char* launcher;
  };
  const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"PMIX_RANK", "1"},
                         {"PMIX_NAMESPACE", "prterun-1"}};
  const Variables hydra{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PMI_FD", "9"}};
  const Variables step{{"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_ID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_PROCID", "3"}};
  const std::vector<Row> table{
      {"mpirun", mpirun, 1, 2, "mpirun"},
      {"torchrun", torchrun(), 1, 2, "torchrun"},
      {"Hydra", hydra, 1, 3, "a PMI launcher"},
      {"srun", step, 3, 4, "srun"},
      {"srun within another step", with(step, "RUEDA_OUTER_STEP", "77.0"), 3, 4, "srun"},
      {"srun within another job's step", with(step, "RUEDA_OUTER_STEP", "76.1"), 3, 4, "srun"},
      {"PMIx", {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-1"}}, 1, 0, "a PMIx launcher"},
      {"an outer step", with(step, "RUEDA_OUTER_STEP", "77.1"), 0, 2, "rueda run"},
      {"mpirun of one",
       with(with(mpirun, "OMPI_COMM_WORLD_SIZE", "1"), "OMPI_COMM_WORLD_RANK", "0"), 0, 2,
       "rueda run"},
      {"torchrun of one", with(with(torchrun(), "RANK", "0"), "WORLD_SIZE", "1"), 0, 2,
       "rueda run"},
      {"torchrun's mark without a rank", {{"TORCHELASTIC_RUN_ID", "x"}}, 0, 2, "rueda run"},
      {"a program's own variables",
       {{"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"PMI_RANK", "1"},
        {"PMI_SIZE", "4"},
        {"HOROVOD_RANK", "1"},
        {"HOROVOD_SIZE", "4"}},
       0,
       2,
       "rueda run"},
  };
  for (const Row& row : table) {
    INFO(row.what);
    Variables variables = rank;
    variables.insert(row.more.begin(), row.more.end());
    const Launch launch = launch_of(variables);
    CHECK(launch.rank == row.rank);
    CHECK(launch.size == row.size);
    CHECK(launch.launcher == row.launcher);
    CHECK(launch.is_within_rank == (launch.launcher != "rueda run"));
  }
  // The program's own world, wherever it is.
  Variables own = with(rank, "RUEDA_RENDEZVOUS", "unix:@there");
  own.insert(mpirun.begin(), mpirun.end());
  CHECK(launch_of(own).launcher == "rueda run");
}

TEST_CASE("variables that make no sense are never taken for a world of one") {
  const std::vector<Variables> table{
      {{"RUEDA_RANK", "0"}},
      {{"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "x:1"}},
      {{"RUEDA_RANK", "2"}, {"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "x:1"}},
      {{"RUEDA_RANK", "one"}, {"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "x:1"}},
      {{"RUEDA_RANK", "-1"}, {"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "x:1"}},
      {{"OMPI_COMM_WORLD_SIZE", "4"}},
      {{"OMPI_COMM_WORLD_SIZE", "0"}, {"OMPI_COMM_WORLD_RANK", "0"}},
      {{"OMPI_COMM_WORLD_SIZE", "4x"}, {"OMPI_COMM_WORLD_RANK", "0"}},
      {{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}},
      {{"TORCHELASTIC_RUN_ID", "none"}, {"WORLD_SIZE", "2"}},
      {{"HOROVOD_SIZE", "99999999999"}, {"HOROVOD_RANK", "0"}},
  };
  for (const Variables& variables : table) {
    INFO(variables.begin()->first << "=" << variables.begin()->second);
    const Launch launch = launch_of(variables);
    CHECK(launch.kind == LaunchKind::foreign);
    CHECK(contains(launch.problem, variables.begin()->first));
    CHECK(contains(launch.problem, "rueda run"));
  }
}

TEST_CASE("the job's secret is read, and goes into no message") {
  Variables variables{{"RUEDA_RANK", "1"},
                      {"RUEDA_SIZE", "2"},
                      {"RUEDA_RENDEZVOUS", "x:1"},
                      {"RUEDA_SECRET", "known to few"}};
  const Launch launch = launch_of(variables);
  CHECK(launch.secret == "known to few");
  CHECK_FALSE(contains(launch.evidence, "known to few"));
  variables["RUEDA_RANK"] = "2";
  CHECK_FALSE(contains(launch_of(variables).problem, "known to few"));
}

TEST_CASE("ranks of one host meet where only their attempt of their job meets") {
  struct Row {
    const Variables& variables;
    std::vector<const char*> tell_apart;
    const char* rank;
  };
  const Row table[] = {
      {torchrun(),
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
       "RANK"},
      {srun(),
       {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
       "SLURM_PROCID"},
  };
  for (const Row& row : table) {
    const Launch launch = meeting_of(row.variables);
    INFO(launch.launcher);
    REQUIRE(launch.kind == LaunchKind::rendezvous);
    CHECK(launch.problem.empty());
    CHECK(launch.address.starts_with("unix:@rueda-"));
    CHECK(launch.address.size() < 100);
    CHECK(meeting_of(with(row.variables, row.rank, "0")).address == launch.address);
    for (const char* name : row.tell_apart) {
      INFO(name);
      CHECK(meeting_of(with(row.variables, name, "4711")).address != launch.address);
    }
    const Launch guarded = meeting_of(with(row.variables, "RUEDA_SECRET", "known to few"));
    CHECK(guarded.secret == "known to few");
    CHECK(guarded.address != launch.address);
    CHECK_FALSE(contains(guarded.address, "known to few"));
  }
}

TEST_CASE("ranks that PMI, several hosts or a wrong number describe do not meet on one host") {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_HET_SIZE"}) {
    INFO(name);
    CHECK(meeting_of(with(srun(), name, "2")).kind != LaunchKind::rendezvous);
  }
  for (const char* list : {"", "n[1-2]", "n[1"}) {
    INFO(list);
    CHECK(meeting_of(with(srun(), "SLURM_STEP_NODELIST", list)).kind == LaunchKind::mpi);
  }
  CHECK(meeting_of(with(srun(), "SLURM_PROCID", "4")).kind == LaunchKind::foreign);
  CHECK(meeting_of(with(srun(), "SLURM_STEP_NUM_TASKS", "1")).kind == LaunchKind::none);
  CHECK(meeting_of(with(with(torchrun(), "LOCAL_WORLD_SIZE", "1"), "MASTER_ADDR", "h0")).kind ==
        LaunchKind::foreign);
  CHECK(meeting_of(with(torchrun(), "MASTER_PORT", "")).kind == LaunchKind::foreign);
  CHECK(meeting_of(with(torchrun(), "RANK", "2")).kind == LaunchKind::foreign);
  CHECK(meeting_of(with(srun(), "OMPI_COMM_WORLD_SIZE", "4")).launcher != "srun");
}

TEST_CASE("ranks on several hosts meet at the first of ports that follow from their attempt") {
  struct Row {
    const Variables& variables;
    std::vector<const char*> tell_apart;
    std::vector<const char*> alike;
  };
  const Row table[] = {
      {agents(),
       {"MASTER_PORT", "TORCHELASTIC_RUN_ID"},
       {"RANK", "TORCHELASTIC_RESTART_COUNT", "LOCAL_WORLD_SIZE"}},
      {bare(), {"MASTER_PORT"}, {"RANK"}},
      {step_of_nodes(),
       {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
       {"SLURM_PROCID"}},
  };
  for (const Row& row : table) {
    const Launch launch = meeting_across(row.variables);
    INFO(launch.launcher);
    REQUIRE(launch.kind == LaunchKind::rendezvous);
    CHECK(launch.problem.empty());
    CHECK(contains(launch.remedy, "rueda run -H"));
    CHECK(launch.other_addresses.size() == 7);
    CHECK(launch.ends_with_agent == (launch.launcher == "torchrun"));
    const auto is_at_host = [](const std::string& address) {
      const int port = address.starts_with("tcp:h0:") ? std::stoi(address.substr(7)) : 0;
      return port >= 20'000 && port < 32'000;
    };
    CHECK(is_at_host(launch.address));
    for (const std::string& address : launch.other_addresses) CHECK(is_at_host(address));
    for (const char* name : row.alike) {
      INFO(name);
      const Launch other = meeting_across(with(row.variables, name, "0"));
      CHECK(other.address == launch.address);
      CHECK(other.secret == launch.secret);
    }
    for (const char* name : row.tell_apart) {
      INFO(name);
      const Launch other = meeting_across(with(row.variables, name, "4711"));
      CHECK(other.other_addresses != launch.other_addresses);
      CHECK(other.secret != launch.secret);
    }
    // The user's secret itself is not used.
    CHECK(launch.secret != "known to the ranks");
    const Launch strange = meeting_across(with(row.variables, "RUEDA_SECRET", "known to others!"));
    CHECK(strange.address == launch.address);
    CHECK(strange.secret != launch.secret);
  }
}

TEST_CASE("ranks on several hosts without a secret are refused, with how to give one") {
  for (const Variables& variables : {agents(), bare(), step_of_nodes()}) {
    for (const std::string secret : {"", "fifteen letters"}) {
      const Launch launch = meeting_across(with(variables, "RUEDA_SECRET", secret));
      CHECK(contains(launch.problem, "the one given, which is too short") == !secret.empty());
      CHECK(launch.kind == LaunchKind::foreign);
      for (const char* part : {"one of 4 ranks", "RUEDA_SECRET=$(openssl rand -hex 32)",
                               "RUEDA_SECRET_FILE", "rueda run -H"}) {
        INFO(launch.problem);
        CHECK(contains(launch.problem, part));
      }
    }
  }
}

TEST_CASE("MASTER_ADDR leads the tasks of a step where the first node's name does not") {
  CHECK(meeting_across(with(step_of_nodes(), "MASTER_ADDR", "10.0.0.7"))
            .address.starts_with("tcp:10.0.0.7:"));
  for (const char* host : {"fd13::1", "[fd13::1]"}) {
    CHECK(meeting_across(with(step_of_nodes(), "MASTER_ADDR", host))
              .address.starts_with("tcp:[fd13::1]:"));
  }
  CHECK(meeting_across(with(step_of_nodes(), "MASTER_ADDR", "localhost"))
            .address.starts_with("tcp:h0:"));
}

TEST_CASE("ranks whose master is a loopback are on one host") {
  for (const char* host : {"localhost", "127.0.0.1", "::1", "[::1]"}) {
    for (const Variables& variables : {agents(), bare()}) {
      const Launch launch =
          meeting_across(with(with(variables, "MASTER_ADDR", host), "RUEDA_SECRET", ""));
      CHECK(launch.kind == LaunchKind::rendezvous);
      CHECK(launch.address.starts_with("unix:@rueda-"));
    }
  }
}

TEST_CASE("what PMI offers, or what tells no master, does not meet over TCP") {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_HET_SIZE"}) {
    INFO(name);
    CHECK(meeting_across(with(step_of_nodes(), name, "2")).kind != LaunchKind::rendezvous);
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    INFO(name);
    CHECK(meeting_across(with(agents(), name, "")).kind == LaunchKind::foreign);
    CHECK(meeting_across(with(bare(), name, "")).kind == LaunchKind::foreign);
  }
  CHECK(meeting_across(with(bare(), "RANK", "4")).kind == LaunchKind::foreign);
}

TEST_CASE("a rank that is no number is not taken for rank 0") {
  for (const std::string rank : {"a", " 1", "-1", "1.0", "0x1", "99999999999"}) {
    for (const Variables& variables : {torchrun(), agents(), bare()}) {
      for (const char* host : {"localhost", "h0"}) {
        const Launch launch =
            meeting_across(with(with(variables, "RANK", rank), "MASTER_ADDR", host));
        INFO(launch.launcher << ", RANK=" << rank << ", at " << host);
        CHECK(launch.kind == LaunchKind::foreign);
        CHECK(contains(launch.problem, str("are invalid (WORLD_SIZE=", launch.size)));
        CHECK(contains(launch.problem, str("RANK=", rank)));
      }
    }
    CHECK(meeting_across(with(srun(), "SLURM_PROCID", rank)).kind == LaunchKind::foreign);
    CHECK(meeting_across(with(step_of_nodes(), "SLURM_PROCID", rank)).kind == LaunchKind::foreign);
  }
}

TEST_CASE("what the ranks lack to meet is named") {
  for (const Variables& variables : {agents(), bare()}) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      const std::string problem = meeting_across(with(variables, name, "")).problem;
      INFO(problem);
      CHECK(contains(problem, str("since ", name, " is not set")));
      CHECK(contains(problem, "rueda run"));
    }
  }
}

TEST_CASE("PMI is spoken with Hydra, Flux and srun --mpi=pmi2, where they tell a descriptor") {
  const Variables flux{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}, {"PMI_FD", "7"}};
  const auto offers = [](const Variables& variables) {
    return offers_pmi(launch_of(variables), environment_of(variables));
  };
  CHECK(offers(flux));
  CHECK(offers(with(flux, "MPI_LOCALNRANKS", "2")));
  CHECK(offers(with(flux, "SLURM_STEP_ID", "0")));
  CHECK_FALSE(offers(with(flux, "PMI_FD", "")));
  CHECK_FALSE(offers(with(flux, "PMI_RANK", "4")));
  CHECK_FALSE(offers(bare()));
}

TEST_CASE("a process manager that does not answer is named, with what to do") {
  const Variables variables{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_FD", "9999"}};
  const auto opened = open_bootstrap(Options{}, environment_of(variables));
  CHECK(contains(opened.status(), "PMI_SIZE=2"));
  CHECK(contains(opened.status(), "rueda run"));
}

TEST_CASE("a secret in a file stands for the variable, which comes first") {
  CHECK(contains(with_secret_of_file(environment_of({{"RUEDA_SECRET_FILE", "/nowhere"}})).status(),
                 "RUEDA_SECRET_FILE=/nowhere cannot be read"));
  const auto given = with_secret_of_file(
      environment_of({{"RUEDA_SECRET_FILE", "/nowhere"}, {"RUEDA_SECRET", "given"}}));
  REQUIRE(given.ok());
  CHECK(given.value()("RUEDA_SECRET") == "given");
  CHECK(contains(
      with_secret_of_file(environment_of({{"RUEDA_SECRET_FILE", "/proc/self/maps"}})).status(),
      "chmod 600"));
}

TEST_CASE("a foreign launcher's world is refused, with what to do") {
  const auto opened = open_bootstrap(
      Options{},
      environment_of({{"TORCHELASTIC_RUN_ID", "a"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}}));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.status().code() == ErrorCode::initialization);
  const std::string message = opened.status().to_string();
  for (const char* part :
       {"torchrun", "WORLD_SIZE=4", "RANK=1", "mpirun", "RUEDA_BOOTSTRAP=none"}) {
    INFO(message);
    CHECK(contains(message, part));
  }
}

TEST_CASE("what tells of several processes is pointed out to one that is alone") {
  const Variables several[] = {
      {{"WORLD_SIZE", "4"}},           {{"PET_NNODES", "2"}},
      {{"PET_NNODES", "1:4"}},         {{"PET_NPROC_PER_NODE", "8"}},
      {{"JOB_COMPLETION_INDEX", "0"}}, {{"SLURM_NTASKS", "2"}},
      {{"FLUX_JOB_SIZE", "2"}},        {{"PBS_NP", "16"}},
      {{"LSB_DJOB_NUMPROC", "2"}},     {{"AWS_BATCH_JOB_NUM_NODES", "2"}},
  };
  for (const Variables& variables : several) {
    const auto& [name, value] = *variables.begin();
    const Environment environment = environment_of(variables);
    CHECK(detect_launch(environment).kind == LaunchKind::none);
    const std::string hint = hint_at_more_ranks(environment);
    INFO(hint);
    CHECK(contains(hint, str(name, "=", value)));
    CHECK(contains(hint, "rueda run --nodes") == (name == "JOB_COMPLETION_INDEX"));
    CHECK(contains(hint, "RUEDA_BOOTSTRAP=none"));
  }
}

TEST_CASE("nothing is pointed out to a process that is alone by all signs") {
  CHECK(hint_at_more_ranks(environment_of({})).empty());
  CHECK(hint_at_more_ranks(environment_of({{"WORLD_SIZE", "1"},
                                           {"SLURM_NTASKS", "1"},
                                           {"PET_NNODES", "1:1"},
                                           {"PET_NPROC_PER_NODE", "auto"},
                                           {"PBS_NP", ""},
                                           {"JOB_COMPLETION_INDEX", ""}}))
            .empty());
}

TEST_CASE("RUEDA_BOOTSTRAP=none makes a world of one whatever the launcher says") {
  Options options;
  options.bootstrap = "none";
  auto opened = open_bootstrap(
      options, environment_of({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}}));
  REQUIRE(opened.ok());
  CHECK(opened->bootstrap->name() == "solo");
  CHECK(opened->bootstrap->size() == 1);
  CHECK(opened->mpi == nullptr);
  CHECK_FALSE(opened->mpi_transport.make_transport);
  CHECK_FALSE(opened->mpi_transport.unavailable.ok());
}

TEST_CASE("RUEDA_BOOTSTRAP=rendezvous without its variables says which are missing") {
  Options options;
  options.bootstrap = "rendezvous";
  const auto opened = open_bootstrap(options, environment_of({}));
  REQUIRE_FALSE(opened.ok());
  CHECK(contains(opened.status().to_string(), "RUEDA_RENDEZVOUS"));
}

TEST_CASE("the solo bootstrap keeps what was put") {
  SoloBootstrap bootstrap;
  REQUIRE(bootstrap.put("a", "1").ok());
  CHECK_FALSE(bootstrap.put("a", "2").ok());
  REQUIRE(bootstrap.barrier(Clock::now()).ok());
  CHECK(bootstrap.get("a").value() == "1");
  CHECK_FALSE(bootstrap.get("b").ok());
}

}  // namespace rueda::test::launch_test
