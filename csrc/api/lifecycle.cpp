#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "api/current_runtime.h"
#include "api/start_runtime.h"
#include "api/succession.h"
#include "core/log.h"
#include "core/unknown_variables.h"
#include "membership/launcher_notice.h"
#include "membership/open_bootstrap.h"
#include "membership/world.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

// Leaked on purpose: nothing of it may be destroyed while threads of the application still run at
// exit.
struct Process {
  std::mutex life;  // held through init and shutdown
  std::mutex mutex;
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<Succession> succession;  // with recovery; under `life`
  // By the fork handler, which may not take a lock.
  std::atomic<Runtime*> watched{nullptr};
  std::atomic<Succession*> watched_succession{nullptr};
  std::atomic<bool> forked{false};
  MpiPlugin* mpi = nullptr;  // once MPI is in use
  bool broken = false;       // a world ended in a failure, and MPI has formed none since
  bool prepared = false;
  bool warned = false;  // of variables that nothing reads
};

Process& process() {
  static auto* instance = new Process;
  return *instance;
}

void after_fork_in_child() {
  Process& state = process();
  Runtime* runtime = state.watched.exchange(nullptr);
  Succession* succession = state.watched_succession.exchange(nullptr);
  if (runtime == nullptr && state.mpi == nullptr) return;
  state.forked = true;
  if (succession != nullptr) succession->close_after_fork();
  if (runtime != nullptr) runtime->close_after_fork();
}

// MPI cannot be initialised again, so it is finalised only now. After a failure it must not be:
// MPI_Finalize would wait for ranks that are gone.
void at_exit() {
  Process& state = process();
  if (state.forked) return;
  shutdown();
  if (state.mpi != nullptr && !state.broken) state.mpi->finalize();
}

void set_runtime(std::shared_ptr<Runtime> runtime) {
  Process& state = process();
  const std::lock_guard lock(state.mutex);
  state.watched = runtime.get();
  state.runtime = std::move(runtime);
}

std::shared_ptr<Runtime> find_runtime() {
  Process& state = process();
  if (state.forked) return nullptr;
  const std::lock_guard lock(state.mutex);
  return state.runtime;
}

std::shared_ptr<Runtime> take_runtime() {
  Process& state = process();
  if (state.forked) return nullptr;
  const std::lock_guard lock(state.mutex);
  state.watched = nullptr;
  return std::exchange(state.runtime, nullptr);
}

template <class T>
T value_or_throw(Expected<T> expected) {
  expected.status().throw_if_error();
  return *std::move(expected);
}

// Under `life`.
void end_succession() {
  process().watched_succession = nullptr;
  process().succession.reset();
}

std::function<void(const Status&)> open_succession(Bootstrap& bootstrap, const World& first,
                                                   const Options& options) {
  end_succession();
  if (options.recovery != "on" || first.topology.size == 1) return {};
  const auto start = [options](World world, Bootstrap& members,
                               std::function<void(const Status&)> on_failure) {
    return start_runtime(std::move(world), members, options, std::move(on_failure));
  };
  process().succession = value_or_throw(Succession::open(
      bootstrap, first, options, start, Clock::now() + seconds(options.init_timeout)));
  process().watched_succession = process().succession.get();
  return process().succession->on_first_failure();
}

// Once, by rank 0; `rueda run` has done so itself.
void warn_of_unknown_variables(const Environment& environment) {
  if (std::exchange(process().warned, true) || environment("RUEDA_LAUNCHER")) return;
  if (detect_launch(environment).rank != 0) return;
  for (const std::string& sentence : unknown_variables(environment_names())) {
    log(LogLevel::warning, sentence);
  }
}

}  // namespace

void throw_forked() {
  throw NotInitializedError(
      "this process was forked from one that uses Rueda and is not a rank itself: use the start "
      "method 'spawn' for processes that need collectives");
}

std::shared_ptr<Runtime> current_runtime() {
  auto runtime = find_runtime();
  if (runtime) return runtime;
  if (process().forked) throw_forked();
  throw NotInitializedError("rueda has not been initialised: call rueda.init() first");
}

void init(const std::map<std::string, std::string>& overrides) {
  Process& state = process();
  if (state.forked) throw_forked();
  const std::lock_guard life(state.life);
  const Options options = value_or_throw(read_options(process_environment(), overrides));
  if (find_runtime()) {
    if (!overrides.empty()) {
      log(LogLevel::warning,
          "init() was called again: its options are not applied to the world that exists");
    }
    return;
  }
  set_log_level(log_level_of(options.log_level));
  warn_of_unknown_variables(process_environment());
  OpenedBootstrap opened = value_or_throw(open_bootstrap(options, process_environment()));
  if (!std::exchange(state.prepared, true)) {
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    std::atexit(at_exit);
  }
  if (opened.mpi != nullptr) {
    state.mpi = opened.mpi;
    // The application may finalise MPI itself: the runtime must have left it by then.
    state.mpi->before_finalize([] { shutdown(); });
  }
  World world = value_or_throw(form_world(*opened.bootstrap, options, opened.mpi_transport));
  if (world.topology.size == opened.launch.size) {  // before any rank may leave
    notify_launcher(process_environment(), opened.launch, Arrival::met);
  }
  set_log_rank(world.topology.rank);
  auto on_failure = open_succession(*opened.bootstrap, world, options);
  set_runtime(start_runtime(std::move(world), *opened.bootstrap, options, std::move(on_failure)));
  // All that MPI has started are in this world: nobody is missing for MPI_Finalize.
  if (opened.mpi != nullptr) state.broken = false;
}

void shutdown() {
  if (process().forked) return;
  const std::lock_guard life(process().life);
  // Other threads may hold the runtime for the length of a call: it is stopped here, destroyed by
  // the last.
  if (const auto runtime = take_runtime()) {
    runtime->shutdown();
    process().broken = process().broken || !runtime->failure().ok();
  }
  end_succession();
}

Recovery recover(double timeout, bool break_whole) {
  Process& state = process();
  if (state.forked) throw_forked();
  const std::lock_guard life(state.life);
  const auto broken = current_runtime();
  if (!state.succession) {
    throw UnsupportedError(
        "recover() needs a world of several ranks that was formed with the option recovery=on");
  }
  if (!broken->is_broken()) {
    if (!break_whole) {
      throw InvalidArgumentError("the world is whole: there is nothing to recover from");
    }
    broken->abort("it begins anew");
  }
  auto next = value_or_throw(state.succession->take_next(Clock::now() + seconds(timeout)));
  take_runtime();
  broken->shutdown();
  state.broken = true;  // as MPI sees it
  set_log_rank(next.runtime->topology().rank);
  set_runtime(std::move(next.runtime));
  return std::move(next.recovery);
}

void abort(const std::string& cause) {
  if (process().forked) return;
  const std::lock_guard life(process().life);
  end_succession();  // first: the others shall not form a world with this rank
  if (const auto runtime = take_runtime()) {
    runtime->abort(cause);
    process().broken = true;
  }
}

bool is_initialized() {
  return find_runtime() != nullptr;
}

int rank() {
  return current_runtime()->topology().rank;
}
int size() {
  return current_runtime()->topology().size;
}
int local_rank() {
  return current_runtime()->topology().local_rank;
}
int local_size() {
  return current_runtime()->topology().local_size;
}
int cross_rank() {
  return current_runtime()->topology().cross_rank;
}
int cross_size() {
  return current_runtime()->topology().cross_size;
}
bool is_homogeneous() {
  return current_runtime()->topology().homogeneous;
}

std::map<std::string, std::int64_t> metrics() {
  return current_runtime()->metrics();
}
void count_filled_gradient() {
  current_runtime()->count_filled_gradient();
}

void start_timeline(const std::string& path, TimelineFormat format, bool mark_cycles) {
  current_runtime()->start_timeline(path, {format, mark_cycles}).throw_if_error();
}

void stop_timeline() {
  current_runtime()->stop_timeline();
}

std::map<std::string, std::string> options() {
  const auto runtime = current_runtime();
  std::map<std::string, std::string> values;
  for (const OptionSpec& spec : option_table()) {
    values[std::string(spec.name)] = option_text(spec, runtime->options());
  }
  // Those in use, not "auto".
  values["transport"] = runtime->transport_name();
  values["algorithm"] = runtime->algorithms_of_world().to_string();
  return values;
}

}  // namespace rueda
