#include "membership/launch.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>

#include "core/strings.h"

namespace rueda {

namespace {

using Text = std::optional<std::string>;

constexpr auto advice =
    "start it with `rueda run` or mpirun, or set RUEDA_BOOTSTRAP=none if each process is to train "
    "by itself";

std::optional<int> number(const Text& text) {
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < 0) return std::nullopt;
  return value;
}

Text non_empty(const Environment& environment, std::string_view variable) {
  if (variable.empty()) return std::nullopt;
  Text value = environment(variable);
  return value && !value->empty() ? value : std::nullopt;
}

std::string shown(std::string_view variable, const Text& value) {
  return value ? str(variable, "=", *value) : str(variable, " is not set");
}

// A launcher recognised by its variables for rank and size.
struct Launcher {
  std::string_view name;
  LaunchKind kind;
  std::string_view mark;  // must be set too, unless empty
  std::string_view rank;
  std::string_view size;
  std::string_view own;  // set by the launcher alone: programs also set ranks and sizes themselves
};

// Innermost first. A torchrun worker in a job started through MPI inherits MPI's variables.
constexpr std::array launchers{
    Launcher{"torchrun", LaunchKind::foreign, "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE",
             "TORCHELASTIC_RUN_ID"},
    Launcher{"mpirun", LaunchKind::mpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
    Launcher{"a PMI launcher", LaunchKind::mpi, "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_FD"},
    Launcher{"srun", LaunchKind::mpi, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
             "SLURM_STEP_ID"},
};
// Checked after PMIx, which may set the rank along with them.
constexpr std::array lesser_launchers{
    Launcher{"horovodrun", LaunchKind::foreign, "HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", ""},
    Launcher{"the launcher", LaunchKind::foreign, "WORLD_SIZE", "RANK", "WORLD_SIZE", ""},
};

// Several launchers set PMI_RANK and PMI_SIZE. Hydra may start its proxies through srun, so its own
// variable is checked before Slurm's.
std::string_view name_of(const Launcher& launcher, const Environment& environment) {
  if (launcher.mark != "PMI_SIZE") return launcher.name;
  if (non_empty(environment, "I_MPI_MPIRUN")) return "Intel MPI's mpirun";
  if (non_empty(environment, "MPI_LOCALNRANKS")) return "Hydra (MPICH, Intel MPI)";
  if (non_empty(environment, "SLURM_STEP_ID")) return "srun";
  return launcher.name;
}

Launch impossible(Launch launch, const std::string& problem) {
  launch.kind = LaunchKind::foreign;
  launch.problem = str(problem, ": ", advice);
  return launch;
}

// Why ranks do not meet whose launcher is to tell where; empty if it does, or never would.
std::string missing_place(const Launcher& launcher, const Environment& environment) {
  if (launcher.size != "WORLD_SIZE") return {};
  for (const char* variable : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!non_empty(environment, variable)) return str(", since ", variable, " is not set");
  }
  return {};
}

// nullopt if this launcher did not start the process, or started it alone without MPI.
std::optional<Launch> recognise(const Launcher& launcher, const Environment& environment) {
  if (!non_empty(environment, launcher.mark)) return std::nullopt;
  const Text rank_text = non_empty(environment, launcher.rank);
  const Text size_text = non_empty(environment, launcher.size);
  // One of these two names alone is too common to conclude anything from it.
  if (launcher.mark == "WORLD_SIZE" && !rank_text) return std::nullopt;
  if (launcher.mark == "SLURM_STEP_ID" && !size_text) return std::nullopt;
  const auto rank = number(rank_text);
  const auto size = number(size_text);
  const std::string_view name = name_of(launcher, environment);
  Launch launch{
      .kind = launcher.kind,
      .rank = rank.value_or(0),
      .size = size.value_or(0),
      .launcher = std::string(name),
      .evidence = str(shown(launcher.size, size_text), ", ", shown(launcher.rank, rank_text),
                      launcher.mark == launcher.size ? "" : str(", ", launcher.mark, " is set"))};
  if (size == 1 && (launcher.kind == LaunchKind::foreign || launcher.name == "srun"))
    return std::nullopt;
  launch.is_consistent = rank && size && *rank < *size;
  if (!launch.is_consistent) {
    return impossible(launch,
                      str("the variables of ", name, " are invalid (", launch.evidence, ")"));
  }
  if (launcher.kind == LaunchKind::foreign) {
    return impossible(
        launch,
        str(launcher.name, " started this process as one of ", *size, " ranks (", launch.evidence,
            "), but Rueda cannot form that world", missing_place(launcher, environment)));
  }
  return launch;
}

std::optional<Launch> recognise_rendezvous(const Environment& environment) {
  const Text rank_text = non_empty(environment, "RUEDA_RANK");
  const Text size_text = non_empty(environment, "RUEDA_SIZE");
  const Text address = non_empty(environment, "RUEDA_RENDEZVOUS");
  if (!rank_text && !size_text && !address) return std::nullopt;
  const auto rank = number(rank_text);
  const auto size = number(size_text);
  Launch launch{
      .kind = LaunchKind::rendezvous,
      .rank = rank.value_or(0),
      .size = size.value_or(0),
      .launcher = "rueda run",
      .evidence = str(shown("RUEDA_RANK", rank_text), ", ", shown("RUEDA_SIZE", size_text), ", ",
                      shown("RUEDA_RENDEZVOUS", address)),
      .address = address.value_or(""),
      .is_served = address && non_empty(environment, "RUEDA_RENDEZVOUS_STORE") == address,
      .listener = number(non_empty(environment, "RUEDA_RENDEZVOUS_LISTENER")).value_or(-1),
      .secret = non_empty(environment, "RUEDA_SECRET").value_or("")};
  launch.is_consistent = rank && size && *rank < *size;
  if (launch.is_consistent && address) return launch;
  return impossible(launch, str("invalid rendezvous settings (", launch.evidence, ")"));
}

// PMIx passes the rank in a variable, but the size only through its library.
std::optional<Launch> recognise_pmix(const Environment& environment) {
  const Text rank_text = non_empty(environment, "PMIX_RANK");
  const auto rank = number(rank_text);
  if (!rank) return std::nullopt;
  return Launch{.kind = LaunchKind::mpi,
                .rank = *rank,
                .size = 0,
                .launcher = "a PMIx launcher",
                .evidence = shown("PMIX_RANK", rank_text)};
}

// Whether `launcher` has started this process within a rank of `rueda run`. That has removed what
// it had inherited of other launchers itself, except for Slurm's step, which programs may ask for:
// RUEDA_OUTER_STEP says which one that was.
bool starts_within_rank(const Launcher& launcher, const Environment& environment) {
  const Text own = non_empty(environment, launcher.own);
  if (!own || launcher.name != "srun") return own.has_value();
  const std::string job = non_empty(environment, "SLURM_JOB_ID").value_or("");
  return str(job, ".", *own) != non_empty(environment, "RUEDA_OUTER_STEP");
}

// The launcher of several processes, this one among them, that a rank of `rueda run` has started.
// One of a single process leaves it the rank that it is.
std::optional<Launch> recognise_within_rank(const Environment& environment) {
  std::optional<Launch> found;
  for (const Launcher& launcher : launchers) {
    if (!starts_within_rank(launcher, environment)) continue;
    found = recognise(launcher, environment);
    if (found && found->is_consistent) break;
    found.reset();
  }
  if (!found && non_empty(environment, "PMIX_NAMESPACE")) found = recognise_pmix(environment);
  if (!found || found->size == 1) return std::nullopt;
  found->is_within_rank = true;
  return found;
}

std::optional<Launch> first_of(std::span<const Launcher> table, const Environment& environment) {
  for (const Launcher& launcher : table) {
    if (auto launch = recognise(launcher, environment)) return launch;
  }
  return std::nullopt;
}

// Evidence of several processes that does not say how they find each other.
struct Sign {
  std::string_view variable;
  int least;  // the number from which on it means several; 0: always
  std::string_view what;
  std::string_view remedy = advice;
};
constexpr std::array signs{
    Sign{"WORLD_SIZE", 2, "a launcher of several processes"},
    Sign{"PET_NNODES", 2, "a job of torchrun on several hosts"},
    Sign{"PET_NPROC_PER_NODE", 2, "a job of torchrun with several processes"},
    Sign{"JOB_COMPLETION_INDEX", 0, "a pod of an indexed Kubernetes job",
         "start `rueda run --nodes N --rendezvous tcp:HOST:PORT` in each pod, or set "
         "RUEDA_BOOTSTRAP=none if each is to train by itself"},
    Sign{"SLURM_NTASKS", 2, "a Slurm job of several tasks"},
    Sign{"FLUX_JOB_SIZE", 2, "a Flux job of several tasks",
         "leave Flux's PMI on (`-o pmi=simple`, its default), or set RUEDA_BOOTSTRAP=none if each "
         "is to train by itself"},
    Sign{"PBS_NP", 2, "a PBS job of several processes"},
    Sign{"LSB_DJOB_NUMPROC", 2, "an LSF job of several processes"},
    Sign{"AWS_BATCH_JOB_NUM_NODES", 2, "an AWS Batch job of several nodes"},
};

// The larger number in "4" or torchrun's range "1:4".
int largest_number(const Text& text) {
  const auto colon = text->rfind(':');
  return number(colon == std::string::npos ? *text : text->substr(colon + 1)).value_or(0);
}

}  // namespace

std::string hint_at_more_ranks(const Environment& environment) {
  for (const Sign& sign : signs) {
    const Text value = non_empty(environment, sign.variable);
    if (!value || largest_number(value) < sign.least) continue;
    return str("this process trains by itself, as a world of one rank, although ", sign.variable,
               "=", *value, " indicates ", sign.what, ": ", sign.remedy);
  }
  return {};
}

Launch detect_launch(const Environment& environment) {
  if (auto launch = recognise_rendezvous(environment)) {
    // Where else ranks meet was said by the program itself, after any launcher.
    if (!launch->is_served) return *launch;
    return recognise_within_rank(environment).value_or(*launch);
  }
  if (auto launch = first_of(launchers, environment)) return *launch;
  if (auto launch = recognise_pmix(environment)) return *launch;
  if (auto launch = first_of(lesser_launchers, environment)) return *launch;
  return {};
}

}  // namespace rueda
