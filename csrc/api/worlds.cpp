// Worlds of a process besides its own; see bindings.h.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "api/start_runtime.h"
#include "coordinator/process_sets.h"
#include "core/log.h"
#include "core/strings.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/bootstrap_solo.h"

namespace rueda {

namespace {

// The first set number that stands for a world; none is reused.
constexpr int first_world = std::numeric_limits<int>::max() - (1 << 25) + 1;
static_assert(first_world >= end_of_formed);

// What the ranks of a world have measured, and that world's address.
struct Measured {
  std::string world;
  KnownCosts costs;
};

// Leaked on purpose, like the state in lifecycle.cpp.
struct Worlds {
  std::mutex mutex;
  std::optional<Measured> measured;
  std::map<int, std::shared_ptr<Runtime>> open;
  int next = first_world;
  bool prepared = false;
  // For the fork handler, which may not take a lock.
  std::array<std::atomic<Runtime*>, world_limit> watched{};
  std::atomic<bool> forked{false};
};

Worlds& worlds() {
  static auto* instance = new Worlds;
  return *instance;
}

void leave_worlds_to_parent() {
  for (auto& watched : worlds().watched) {
    Runtime* runtime = watched.exchange(nullptr);
    if (runtime == nullptr) continue;
    worlds().forked = true;
    runtime->close_after_fork();
  }
}

// Includes worlds that other threads are still using: stopped here, destroyed by their last user.
void close_worlds_at_exit() {
  while (true) {
    int id = 0;
    {
      if (worlds().forked) return;
      const std::lock_guard lock(worlds().mutex);
      if (worlds().open.empty()) return;
      id = worlds().open.begin()->first;
    }
    close_world({id});
  }
}

int add(std::shared_ptr<Runtime> runtime) {
  Worlds& state = worlds();
  const std::lock_guard lock(state.mutex);
  const auto free = std::find(state.watched.begin(), state.watched.end(), nullptr);
  if (free == state.watched.end() || state.next == std::numeric_limits<int>::max()) {
    throw UnsupportedError(str("this process has too many worlds (at most ", world_limit,
                               " at once, and ", std::numeric_limits<int>::max() - first_world,
                               " in all)"));
  }
  *free = runtime.get();
  state.open.emplace(state.next, std::move(runtime));
  return state.next++;
}

std::shared_ptr<Runtime> take(int id) {
  Worlds& state = worlds();
  const std::lock_guard lock(state.mutex);
  const auto found = state.open.find(id);
  if (found == state.open.end()) return nullptr;
  auto runtime = std::move(found->second);
  state.open.erase(found);
  for (auto& watched : state.watched) {
    Runtime* mine = runtime.get();
    watched.compare_exchange_strong(mine, nullptr);
  }
  return runtime;
}

void prepare() {
  const std::lock_guard lock(worlds().mutex);
  if (std::exchange(worlds().prepared, true)) return;
  pthread_atfork(nullptr, nullptr, leave_worlds_to_parent);
  std::atexit(close_worlds_at_exit);
}

std::unique_ptr<Bootstrap> meet(const WorldMeeting& meeting, const Options& options) {
  if (meeting.size == 1) return std::make_unique<SoloBootstrap>();
  auto met = connect_rendezvous(meeting.address, meeting.rank, meeting.size,
                                Clock::now() + seconds(options.init_timeout), meeting.secret,
                                meeting.listener);
  met.status().throw_if_error();
  return std::move(met).value();
}

// What all ranks have measured together in an earlier world; nothing if one of them was not in it.
Expected<std::optional<KnownCosts>> common_costs(Bootstrap& bootstrap, Time deadline) {
  const auto own = [] {
    const std::lock_guard lock(worlds().mutex);
    return worlds().measured;
  }();
  const auto all = bootstrap.allgather("measured in", own ? own->world : std::string(), deadline);
  if (!all) return all.status();
  const bool is_common = own && std::all_of(all->begin(), all->end(),
                                            [&](const auto& each) { return each == own->world; });
  return is_common ? std::optional(own->costs) : std::nullopt;
}

void remember(const std::string& address, const World& world) {
  const std::lock_guard lock(worlds().mutex);
  worlds().measured = {address, {world.host.costs(), world.links_tried}};
}

}  // namespace

ProcessSet open_world(const WorldMeeting& meeting) {
  if (worlds().forked) throw_forked();
  auto options = read_options(process_environment(), meeting.options);
  options.status().throw_if_error();
  options->timeline.clear();
  options->flight_recorder.clear();
  prepare();
  set_log_level(log_level_of(options->log_level));
  const auto bootstrap = meet(meeting, *options);
  const auto known = common_costs(*bootstrap, Clock::now() + seconds(options->init_timeout));
  known.status().throw_if_error();
  auto world = form_world(
      *bootstrap, *options,
      {nullptr, Status(ErrorCode::unsupported, "this world is not formed through MPI")}, *known);
  world.status().throw_if_error();
  if (!*known && meeting.size > 1) remember(meeting.address, *world);
  return {add(start_runtime(std::move(world).value(), *bootstrap, *options))};
}

void close_world(ProcessSet set, const std::string& cause) {
  if (worlds().forked) return;
  const auto runtime = take(set.id);
  if (!runtime) return;
  cause.empty() ? runtime->shutdown() : runtime->abort(cause);
}

SetRuntime runtime_of(ProcessSet set) {
  if (set.id < first_world) return {current_runtime(), set.id};
  Worlds& state = worlds();
  if (state.forked) throw_forked();
  const std::lock_guard lock(state.mutex);
  const auto found = state.open.find(set.id);
  if (found == state.open.end()) throw ShutdownError("the world has been closed");
  return {found->second, 0};
}

}  // namespace rueda
