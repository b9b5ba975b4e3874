#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "api/start_runtime.h"
#include "api/succession.h"
#include "coordinator/inherited_sets.h"
#include "core/deferred_release.h"
#include "core/interruption.h"
#include "core/log.h"
#include "core/strings.h"
#include "core/unknown_variables.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/launcher_notice.h"
#include "membership/open_bootstrap.h"
#include "membership/world.h"
#include "onehost/process_state.h"
#include "plan/algorithm_table.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

// Leaked on purpose: nothing of it may be destroyed while threads of the application still run at
// exit.
struct Process {
  std::mutex life;            // held through init and shutdown: see Life
  std::atomic<int> lives{0};  // threads that hold it or wait for it
  std::mutex mutex;
  std::shared_ptr<Runtime> runtime;
  // Under `life`.
  std::unique_ptr<Succession> succession;        // with recovery
  DeferredRelease left;                          // the world that recover() has left
  std::uint64_t epoch = 0;                       // of the world; higher than that of any before
  std::map<std::string, std::string> overrides;  // what init() was given
  std::string folder;                            // what relative paths in options are relative to
  // By the fork handler, which may not take a lock.
  std::atomic<Runtime*> watched{nullptr};
  std::atomic<Succession*> watched_succession{nullptr};
  std::atomic<bool> forked{false};
  MpiPlugin* mpi = nullptr;  // once MPI is in use
  bool broken = false;       // a world ended in a failure, and MPI has formed none since
  bool watches_forks = false;
  bool prepared = false;
  bool warned = false;  // of variables that nothing reads
};

void after_fork_in_child();

Process& process() {
  static auto* instance = new Process;
  return *instance;
}

// Held by whoever changes which world there is. A child that is forked meanwhile has the mutex
// locked by a thread that it does not have.
class Life {
 public:
  Life() {
    process().lives.fetch_add(1);
    process().life.lock();
    if (std::exchange(process().watches_forks, true)) return;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  }
  ~Life() {
    process().life.unlock();
    process().lives.fetch_sub(1);
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
};

void after_fork_in_child() {
  Process& state = process();
  Runtime* runtime = state.watched.exchange(nullptr);
  Succession* succession = state.watched_succession.exchange(nullptr);
  if (runtime == nullptr && state.mpi == nullptr && state.lives == 0) return;
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
  process().left.finish();
}

// Empty if it has been removed: relative paths then remain relative.
std::string working_folder() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

Options read_anchored_options(const std::map<std::string, std::string>& overrides,
                              const std::string& folder) {
  Options options = value_or_throw(read_options(process_environment(), overrides));
  anchor_paths(options, folder);
  return options;
}

// The options of a world after the first: it does not write over what the one before has written.
Options options_of_later(Options options, std::uint64_t epoch) {
  if (epoch == 0) return options;
  if (!options.flight_recorder.empty()) options.flight_recorder += str("/epoch", epoch);
  return options;
}

std::unique_ptr<Succession> make_succession(Bootstrap& bootstrap, const Succession::First& first,
                                            const Options& options,
                                            const std::shared_ptr<History>& history) {
  if (options.recovery != "on" || first.world.topology.size == 1) return nullptr;
  const auto start = [options, history](World world, Bootstrap& members, std::uint64_t later,
                                        Succession::OnFailure on_failure,
                                        std::shared_ptr<ProcessSets> sets) {
    return start_runtime(std::move(world), members, options_of_later(options, later),
                         std::move(on_failure), {std::move(sets), history});
  };
  return value_or_throw(Succession::open(bootstrap, first, options, start,
                                         Clock::now() + seconds(options.init_timeout)));
}

Succession::OnFailure failures_of_first(const std::unique_ptr<Succession>& succession) {
  return succession ? succession->on_first_failure() : Succession::OnFailure();
}

// Under `life`. Returns what was there before.
std::unique_ptr<Succession> set_succession(std::unique_ptr<Succession> succession) {
  process().watched_succession = succession.get();
  return std::exchange(process().succession, std::move(succession));
}

// Under `life`.
void prepare_process() {
  if (std::exchange(process().prepared, true)) return;
  std::atexit(at_exit);
}

// Within which a rank knows that another one has left in good order, once anything has told it so.
constexpr Duration departure_news = std::chrono::seconds(2);

// Waits until it is known that the world is over, whether by a loss or by a rank that has left it;
// false where nothing is known of that at the deadline.
bool is_over(const Runtime& runtime, Time deadline) {
  while (!runtime.is_broken() && runtime.epoch().sets().departure().ok()) {
    if (Clock::now() >= deadline) return false;
    if (is_interruptible()) look_for_interruption();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// What becomes of a world's process sets while one is formed that takes its place: another thread
// could be given a number that the new world, which does not know of it, gives to another set.
// Such a thread waits until it is known which world goes on.
class OfferedSets {
 public:
  // `present`: null where this process is in no world.
  explicit OfferedSets(std::shared_ptr<Runtime> present) : present_(std::move(present)) {
    if (present_) known_ = present_->process_sets().offer();
  }
  // Where there is no new world, the present one goes on.
  ~OfferedSets() {
    if (present_) present_->sets().take_back();
  }
  OfferedSets(const OfferedSets&) = delete;
  OfferedSets& operator=(const OfferedSets&) = delete;

  [[nodiscard]] const std::optional<KnownSets>& known() const { return known_; }
  void keep_with_next() { present_.reset(); }

 private:
  std::shared_ptr<Runtime> present_;
  std::optional<KnownSets> known_;
};

// What a process says of itself where it enters a world with newcomers.
struct Past {
  std::uint64_t epoch = 0;
  int rank = -1;  // a newcomer
};

std::string text_of(const Past& past) {
  return str(past.epoch, " ", past.rank);
}

Expected<std::vector<Past>> exchange_pasts(Bootstrap& bootstrap, const Past& own, Time deadline) {
  const auto all = bootstrap.allgather("past", text_of(own), deadline);
  if (!all) return all.status();
  std::vector<Past> pasts;
  for (const std::string& text : *all) {
    Past& past = pasts.emplace_back();
    std::istringstream(text) >> past.epoch >> past.rank;
  }
  return pasts;
}

// Once, by rank 0; `rueda run` has done so itself.
void warn_of_unknown_variables(const Environment& environment) {
  if (std::exchange(process().warned, true) || environment("RUEDA_LAUNCHER")) return;
  if (detect_launch(environment).rank != 0) return;
  for (const std::string& sentence : unknown_variables(environment_names())) {
    log(LogLevel::warning, sentence);
  }
}

// By rank 0. Nothing but one transport is used where it is asked for by name, so that no rank knows
// which others are on its host.
void warn_of_idle_algorithm(const World& world, const Options& options) {
  if (world.topology.rank != 0 || world.topology.size == 1 || world.host.knows_hosts()) return;
  if (!AlgorithmTable::needs_hosts(options.algorithm)) return;
  log(LogLevel::warning, "RUEDA_ALGORITHM=", options.algorithm,
      " has no effect beyond ring: with RUEDA_TRANSPORT=", options.transport,
      " all data goes around a ring of all ranks over that transport");
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
  const Life life;
  const std::string folder = working_folder();
  const Options options = read_anchored_options(overrides, folder);
  if (find_runtime()) {
    if (!overrides.empty()) {
      log(LogLevel::warning,
          "init() was called again: its options are ignored, the world keeps its own");
    }
    return;
  }
  set_log_level(log_level_of(options.log_level));
  warn_of_unknown_variables(process_environment());
  OpenedBootstrap opened = value_or_throw(open_bootstrap(options, process_environment()));
  prepare_process();
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
  warn_of_idle_algorithm(world, options);
  end_succession();
  const auto sets = std::make_shared<ProcessSets>(world.topology.rank, world.topology.size);
  const auto history = std::make_shared<History>();
  auto succession = make_succession(*opened.bootstrap, {world, 0, sets}, options, history);
  auto runtime = start_runtime(std::move(world), *opened.bootstrap, options,
                               failures_of_first(succession), {sets, history});
  runtime->take_over(0);
  set_runtime(std::move(runtime));
  set_succession(std::move(succession));
  state.epoch = 0;
  state.overrides = overrides;
  state.folder = folder;
  // All that MPI has started are in this world: nobody is missing for MPI_Finalize.
  if (opened.mpi != nullptr) state.broken = false;
}

void shutdown() {
  if (process().forked) return;
  const Life life;
  end_succession();  // first: the others shall not form a world with this rank
  // Other threads may hold the runtime for the length of a call: it is stopped here, destroyed by
  // the last.
  if (const auto runtime = take_runtime()) {
    runtime->shutdown();
    runtime->timeline().end();
    process().broken = process().broken || !runtime->epoch().failure().ok();
  }
}

namespace {

// For a rank that must stop as a minority, perhaps because most others are stopped: nobody else may
// be left to report them, and the job would wait for them.
void report_stopped(const Topology& topology) {
  const int here = topology.host_of[static_cast<std::size_t>(topology.rank)];
  for (int rank = 0; rank < topology.size; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    const int process = topology.process_ids[place];
    if (rank == topology.rank || topology.host_of[place] != here) continue;
    if (is_stopped(process)) {
      report_silent(process_environment(), topology.host_names[place], process);
    }
  }
}

}  // namespace

Recovery recover(double timeout, bool break_whole) {
  Process& state = process();
  if (state.forked) throw_forked();
  const Life life;
  auto broken = current_runtime();
  if (!state.succession) {
    throw UnsupportedError(
        "recover() needs a world of several ranks that was formed with the option recovery=on");
  }
  const Time now = Clock::now();
  if (!broken->is_broken()) {
    // Where a rank has left in good order, a message to it may have failed before the world is
    // over.
    if (!break_whole && !is_over(*broken, now + std::min(seconds(timeout), departure_news))) {
      throw InvalidArgumentError("the world is whole: there is nothing to recover from");
    }
    const Status departure = broken->epoch().sets().departure();
    broken->abort(departure.ok() ? "it called recover()"
                                 : str("it called recover(), as ", departure.message()));
  }
  auto taken = state.succession->take_next(now + seconds(timeout));
  if (!taken && taken.status().details().reason == ErrorReason::unreachable) {
    report_stopped(broken->topology());
  }
  auto next = value_or_throw(std::move(taken));
  state.broken = true;  // as MPI sees it
  set_log_rank(next.runtime->topology().rank);
  next.runtime->take_over(next.recovery.epoch);
  set_runtime(std::move(next.runtime));
  broken->shutdown();
  state.epoch = next.recovery.epoch;
  // How the world has noticed it says more than that the rank could not be called afterwards.
  const Status cause = broken->epoch().failure();
  const Status departure = broken->epoch().sets().departure();
  const Topology& topology = broken->topology();
  for (Recovery::Lost& lost : next.recovery.lost) {
    const auto rank = static_cast<std::size_t>(lost.rank);
    lost.host = topology.host_names[rank];
    lost.process_id = topology.process_ids[rank];
    if (lost.rank == departure.peer()) lost.cause = departure.to_string();
    if (lost.rank == cause.peer()) {
      lost.cause = cause.to_string();
      lost.reason = cause.details().reason;
    }
    if (lost.reason == ErrorReason::unreachable) {
      report_silent(process_environment(), lost.host, lost.process_id);
    }
  }
  next.recovery.interrupted = broken->epoch().sets().interrupted();
  state.left.take(std::move(broken));
  return std::move(next.recovery);
}

bool is_world_over(double timeout) {
  const auto present = find_runtime();
  return present && is_over(*present, Clock::now() + seconds(timeout));
}

void throw_if_rank_is_lost() {
  const auto present = find_runtime();
  if (!present) return;
  // Not where ranks have left it: they are in the new one already.
  const Status refusal = present->refusal();
  if (refusal.code() == ErrorCode::peer_lost) refusal.throw_if_error();
}

void throw_if_rank_has_left(const std::vector<int>& ranks) {
  const auto present = find_runtime();
  if (!present) return;
  const Status departure = present->epoch().sets().departure();
  if (std::ranges::find(ranks, departure.peer()) != ranks.end()) departure.throw_if_error();
}

Recovery enter_world(const WorldMeeting& meeting) {
  Process& state = process();
  if (state.forked) throw_forked();
  const Life life;
  const auto present = find_runtime();
  if (present && state.mpi != nullptr) {
    throw UnsupportedError(
        "a world formed through MPI cannot admit new ranks: start the job with 'rueda run' without "
        "MPI");
  }
  auto overrides = meeting.options;
  if (present) overrides.insert(state.overrides.begin(), state.overrides.end());
  const std::string folder = present ? state.folder : working_folder();
  const Options options = read_anchored_options(overrides, folder);
  if (!present) set_log_level(log_level_of(options.log_level));
  prepare_process();
  const Time deadline = Clock::now() + seconds(options.init_timeout);
  const auto bootstrap = value_or_throw(connect_rendezvous(
      meeting.address, meeting.rank, meeting.size, deadline, meeting.secret, meeting.listener));
  const Past own = present ? Past{state.epoch, present->topology().rank} : Past();
  const auto pasts = value_or_throw(exchange_pasts(*bootstrap, own, deadline));
  Recovery entered;
  for (const Past& past : pasts) {
    if (past.rank >= 0) entered.epoch = std::max(entered.epoch, past.epoch + 1);
    entered.previous_ranks.push_back(past.rank);
  }
  const MpiCapability no_mpi{nullptr, Status(ErrorCode::unsupported, "the ranks met without MPI")};
  World world = value_or_throw(form_world(*bootstrap, options, no_mpi));
  OfferedSets offered(present);
  const auto sets = value_or_throw(inherit_sets(*bootstrap, offered.known(), deadline));
  const auto history = present ? present->history() : std::make_shared<History>();
  auto succession = make_succession(*bootstrap, {world, entered.epoch, sets}, options, history);
  auto runtime =
      start_runtime(std::move(world), *bootstrap, options_of_later(options, entered.epoch),
                    failures_of_first(succession), {sets, history});
  // From here on nothing fails: all are in the new world.
  offered.keep_with_next();
  set_log_rank(runtime->topology().rank);
  runtime->take_over(entered.epoch);
  set_runtime(std::move(runtime));
  state.epoch = entered.epoch;
  state.overrides = overrides;
  state.folder = folder;
  const auto before = set_succession(std::move(succession));
  if (present) present->shutdown();
  return entered;
}

void abort(const std::string& cause) {
  if (process().forked) return;
  const Life life;
  end_succession();
  if (const auto runtime = take_runtime()) {
    runtime->abort(cause);
    runtime->timeline().end();
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
  return current_runtime()->history()->values();
}
void count_filled_gradient() {
  current_runtime()->metrics().gradients_filled.add(1);
}

void start_timeline(const std::string& path, TimelineFormat format, bool mark_cycles) {
  // Like the option's path, so that it is recognised if it is the same.
  const std::string file = anchored(path, working_folder());
  current_runtime()->timeline().open(file, {format, mark_cycles}).throw_if_error();
}

void stop_timeline() {
  current_runtime()->timeline().close();
}

void write_flight_record() {
  current_runtime()
      ->flight_recorder()
      .write(FlightRecorder::Occasion::request, "requested by the application")
      .throw_if_error();
}

std::map<std::string, std::string> options() {
  const auto runtime = current_runtime();
  std::map<std::string, std::string> values;
  for (const OptionSpec& spec : option_table()) {
    values[std::string(spec.name)] = option_text(spec, runtime->options());
  }
  // Those in use, not "auto".
  values["transport"] = runtime->epoch().transport_name();
  values["algorithm"] = runtime->epoch().algorithms().describe();
  return values;
}

}  // namespace rueda
