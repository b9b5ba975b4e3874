#include "membership/open_bootstrap.h"

#include <filesystem>
#include <utility>

#include "core/clock.h"
#include "core/log.h"
#include "core/strings.h"
#include "membership/bootstrap_pmi.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/bootstrap_solo.h"
#include "membership/descriptor_limit.h"
#include "membership/launcher_notice.h"
#include "membership/one_host_launch.h"
#include "membership/secret_file.h"
#include "membership/several_hosts_launch.h"

namespace rueda {

namespace {

MpiCapability no_mpi(const std::string& reason) {
  return {nullptr, Status(ErrorCode::unsupported, reason)};
}

OpenedBootstrap open_solo(Launch launch) {
  return {std::move(launch), std::make_unique<SoloBootstrap>(), nullptr,
          no_mpi("a world of one rank needs no MPI")};
}

std::vector<std::string> addresses_of(const Launch& launch) {
  std::vector<std::string> addresses{launch.address};
  addresses.insert(addresses.end(), launch.other_addresses.begin(), launch.other_addresses.end());
  return addresses;
}

Expected<std::unique_ptr<Bootstrap>> meet(const Launch& launch, Time deadline) {
  if (launch.is_served) {
    return enter_rendezvous(launch.address, launch.rank, launch.size, deadline, launch.secret);
  }
  if (launch.other_addresses.empty()) {
    return connect_rendezvous(launch.address, launch.rank, launch.size, deadline, launch.secret,
                              launch.listener);
  }
  return connect_at_first_free(addresses_of(launch), launch.rank, launch.size, deadline,
                               launch.secret, launch.ends_with_agent);
}

Expected<OpenedBootstrap> open_rendezvous(Launch launch, Time deadline) {
  if (launch.kind != LaunchKind::rendezvous) {
    return Status(
        ErrorCode::initialization,
        launch.problem.empty()
            ? "RUEDA_BOOTSTRAP=rendezvous needs RUEDA_RANK, RUEDA_SIZE and RUEDA_RENDEZVOUS, which "
              "`rueda run` sets"
            : launch.problem);
  }
  if (launch.address.starts_with("unix:")) {  // all ranks are on this host
    if (Status room = provide_descriptors(launch.size); !room.ok()) return room;
  }
  auto bootstrap = meet(launch, deadline);
  if (!bootstrap && !launch.remedy.empty()) {
    return Status(ErrorCode::initialization,
                  str(launch.launcher, " started ", launch.size, " ranks (", launch.evidence,
                      "), which did not meet"))
        .because(bootstrap.status())
        .because(Status(ErrorCode::initialization, launch.remedy));
  }
  if (!bootstrap) return bootstrap.status();
  return OpenedBootstrap{std::move(launch), *std::move(bootstrap), nullptr,
                         no_mpi("the ranks met through a rendezvous, not under mpirun")};
}

MpiCapability capability_of(MpiPlugin* plugin, const Options& options) {
  if (Status status = plugin->can_make_transport(); !status.ok()) return {nullptr, status};
  const Duration timeout = seconds(options.init_timeout);
  return {[plugin, timeout] { return plugin->make_transport(Clock::now() + timeout); }, {}};
}

// The error if a launcher promised `launch.size` ranks but MPI sees `world`.
Status wrong_size(const Launch& launch, int world) {
  const MpiLocation& mpi = mpi_location();
  std::string cause = str("; the MPI in use is ", mpi.version, " (", mpi.library, ")");
  if (launch.kind == LaunchKind::mpi && launch.launcher == "srun") {
    cause += ", which srun cannot start without PMIx: try srun --mpi=pmix, mpirun or `rueda run`";
  } else if (launch.kind == LaunchKind::mpi) {
    cause +=
        ": does the mpirun belong to another MPI? Use the mpirun of this one, or name the other's "
        "library in RUEDA_MPI_LIBRARY";
  } else {
    cause += " and was not started by its mpirun: start with `rueda run` or mpirun";
  }
  return Status(ErrorCode::initialization,
                str(launch.launcher, " started ", launch.size, " ranks (", launch.evidence,
                    "), but MPI's world has ", world, cause));
}

// Open MPI looks for its components under OPAL_PREFIX, which a relocated Open MPI's mpirun exports.
// Components of another version end the process inside MPI_Init.
Status check_prefix(const Environment& environment) {
  namespace fs = std::filesystem;
  const auto prefix = environment("OPAL_PREFIX");
  if (!prefix || prefix->empty()) return {};
  std::error_code ignored;
  const std::string root = (fs::weakly_canonical(*prefix, ignored) / "").string();
  const MpiLocation& mpi = mpi_location();
  if (mpi.library.starts_with(root)) return {};
  return Status(
      ErrorCode::initialization,
      str("OPAL_PREFIX=", *prefix, ", set by the mpirun of the Open MPI there, does not belong to ",
          mpi.version, " (", mpi.library,
          "): use the mpirun of this MPI, or name the other's library in RUEDA_MPI_LIBRARY"));
}

Expected<OpenedBootstrap> open_mpi(Launch launch, const Options& options,
                                   const Environment& environment, Time deadline) {
  const auto failed = [&launch](const Status& cause) {
    if (launch.kind == LaunchKind::none) return cause;
    const std::string size = launch.size > 0 ? std::to_string(launch.size) : "an unknown number of";
    return Status(ErrorCode::initialization,
                  str(launch.launcher, " started ", size, " ranks (", launch.evidence,
                      "), but Rueda cannot reach them through MPI"))
        .because(cause);
  };
  const auto plugin = load_mpi(options);
  if (!plugin) {
    // mpirun -np 1: a world of one in any case.
    if (launch.size == 1 && options.bootstrap == "auto") return open_solo(std::move(launch));
    return failed(plugin.status());
  }
  MpiPlugin* mpi = plugin.value();
  if (!mpi->initialized()) {
    if (Status status = check_prefix(environment); !status.ok()) return failed(status);
  }
  if (Status status = mpi->initialize(); !status.ok()) return failed(status);
  auto bootstrap = mpi->make_bootstrap(deadline);
  if (!bootstrap) return failed(bootstrap.status());
  const int world = bootstrap.value()->size();
  const bool promised = launch.kind != LaunchKind::none && launch.size > 0;
  if (promised && world != launch.size) return wrong_size(launch, world);
  return OpenedBootstrap{std::move(launch), *std::move(bootstrap), mpi,
                         capability_of(mpi, options)};
}

}  // namespace

Expected<OpenedBootstrap> open_bootstrap(const Options& given_options, const Environment& given) {
  Options options = given_options;
  const Time deadline = Clock::now() + seconds(options.init_timeout);
  const auto with_secret = with_secret_of_file(given);
  if (!with_secret) return with_secret.status();
  const Environment& environment = with_secret.value();
  Launch launch = detect_launch(environment);
  // `rueda run` says that to its own ranks.
  if (launch.is_within_rank && options.bootstrap == "rendezvous") options.bootstrap = "auto";
  // In a program that runs MPI, MPI's world is meant.
  if (options.bootstrap != "mpi" && !mpi_is_running()) {
    launch = meet_on_one_host(std::move(launch), environment);
    launch = meet_across_hosts(std::move(launch), environment);
  }
  if (options.bootstrap == "none") return open_solo(std::move(launch));
  if (launch.kind == LaunchKind::rendezvous || launch.kind == LaunchKind::mpi) {
    notify_launcher(environment, launch, Arrival::waiting);
  }
  if (options.bootstrap == "mpi") {
    return open_mpi(std::move(launch), options, environment, deadline);
  }
  if (options.bootstrap == "rendezvous") return open_rendezvous(std::move(launch), deadline);
  if (launch.kind == LaunchKind::rendezvous) return open_rendezvous(std::move(launch), deadline);
  if (!mpi_is_running() && offers_pmi(launch, environment)) {
    // A world of one in any case, and without a conversation that others may begin as well.
    if (launch.size == 1 && options.bootstrap == "auto") return open_solo(std::move(launch));
    auto bootstrap = open_pmi(launch, environment, deadline);
    if (!bootstrap) return bootstrap.status();
    return OpenedBootstrap{std::move(launch), *std::move(bootstrap), nullptr,
                           no_mpi("the ranks met through PMI, not through MPI")};
  }
  if (launch.kind == LaunchKind::mpi || mpi_is_running()) {
    return open_mpi(std::move(launch), options, environment, deadline);
  }
  if (launch.kind == LaunchKind::foreign) {
    return Status(ErrorCode::initialization, launch.problem);
  }
  if (const std::string hint = hint_at_more_ranks(environment); !hint.empty()) {
    log(LogLevel::warning, hint);
  }
  return open_solo(std::move(launch));
}

}  // namespace rueda
