// What the coordinator thread does: it alone drives the lanes and the process sets.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "coordinator/engine.h"
#include "core/log.h"
#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

namespace {

enum class LaneMessage : std::uint8_t { negotiation, failure };

// Polls in a row that move nothing before the thread sleeps (or, where the transport can only be
// polled, naps) although batches are in flight.
constexpr int patience = 200;
constexpr int polling_patience = 20000;

constexpr double farewell_seconds = 5;

}  // namespace

void Engine::run() {
  pthread_setname_np(pthread_self(), "rueda");
  try {
    drive();
  } catch (const std::exception& error) {
    // No memory for a message, say: without this rank the others cannot go on, and they shall know
    // why.
    fail(Status(
        ErrorCode::internal,
        str("the coordinator of ", topology().describe(topology().rank), " failed: ", error.what()),
        topology().rank));
  }
  wind_up();
}

void Engine::drive() {
  bool slept = false;
  for (;;) {
    const Time now = Clock::now();
    const auto deadline = slept ? next_deadline() : std::nullopt;
    const bool due = deadline && now >= *deadline;
    const bool moved = step(now);
    if (slept && !moved && !due) metrics_.idle_wakeups.add(1);
    slept = false;
    if (may_stop(now)) return;
    if (moved) {
      fruitless_ = 0;
      continue;
    }
    fruitless_ = std::min(fruitless_ + 1, polling_patience);
    if (in_flight() && fruitless_ < patience) {
      sched_yield();
      continue;
    }
    const std::int64_t before = metrics_.sleeps.get();
    sleep(now);
    slept = metrics_.sleeps.get() != before;
  }
}

bool Engine::step(Time now) {
  bool moved = take_commands(now);
  moved = world_.control->progress() || moved;
  if (!failure_.ok()) return moved;
  if (in_flight()) moved = world_.transport->progress() || moved;
  for (auto set = sets_.begin(); set != sets_.end();) {
    moved = set->second->step(now) || moved;
    if (!failure_.ok()) return true;
    const bool gone =
        set->second->closed() && !set->second->in_flight() && !process_sets_.find(set->first);
    set = gone ? sets_.erase(set) : std::next(set);
  }
  const Duration timeout = seconds(options_.transfer_timeout);
  for (const auto& [id, set] : sets_) {
    if (Status status = set->broken(now, timeout); !status) {
      fail(status);
      return true;
    }
  }
  return moved;
}

bool Engine::in_flight() const {
  return std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& set) { return set.second->in_flight(); });
}

std::optional<Time> Engine::next_deadline() const {
  std::optional<Time> earliest = leaving_until_;
  const auto consider = [&](std::optional<Time> time) {
    if (time && (!earliest || *time < *earliest)) earliest = time;
  };
  if (!failure_.ok()) return earliest;
  for (const auto& [id, set] : sets_) {
    consider(set->next_deadline());
    const auto moved = set->oldest_move();
    if (moved && options_.transfer_timeout > 0) {
      consider(*moved + seconds(options_.transfer_timeout));
    }
  }
  return earliest;
}

void Engine::sleep(Time now) {
  const bool watches_transport = in_flight() && failure_.ok();
  const int transport_fd = watches_transport ? world_.transport->wait_fd() : -1;
  if (watches_transport && (transport_fd < 0 || world_.host)) return nap();

  timeline_.flush();
  asleep_.store(true);
  bool ready = false;
  {
    const std::lock_guard lock(queue_mutex_);
    ready = !queue_.empty();
  }
  const bool armed = !ready && watches_transport && world_.transport->arm();
  if (!ready && (!watches_transport || armed)) {
    std::array<pollfd, 3> watched{pollfd{wake_fd_.get(), POLLIN, 0},
                                  pollfd{world_.control->wait_fd(), POLLIN, 0},
                                  pollfd{transport_fd, POLLIN, 0}};
    int timeout = -1;
    if (const auto deadline = next_deadline()) {
      const double milliseconds = to_seconds(*deadline - now) * 1e3;
      timeout = static_cast<int>(std::clamp(milliseconds + 1, 0.0, double{INT_MAX}));
    }
    metrics_.sleeps.add(1);
    ::poll(watched.data(), armed ? 3 : 2, timeout);
  }
  if (armed) world_.transport->disarm();
  wake_up();
}

void Engine::wake_up() {
  asleep_.store(false);
  eventfd_t ignored = 0;
  eventfd_read(wake_fd_.get(), &ignored);
}

// For a transport that can only be polled. It is waited for with the processor given away to
// whoever wants it, and after a long wait with short naps, from which a control message or a
// submission still wakes.
void Engine::nap() {
  if (fruitless_ < polling_patience) {
    sched_yield();
    return;
  }
  std::array<pollfd, 2> watched{pollfd{wake_fd_.get(), POLLIN, 0},
                                pollfd{world_.control->wait_fd(), POLLIN, 0}};
  asleep_.store(true);
  ::poll(watched.data(), watched.size(), 1);
  wake_up();
}

// --- Commands

bool Engine::take_commands(Time now) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(queue_mutex_);
    commands.swap(queue_);
  }
  const bool moved = !commands.empty();
  for (Command& command : commands) obey(std::move(command), now);
  return moved;
}

void Engine::refuse(const Command& command, const Status& reason) {
  for (const Submission& submission : command.submissions) submission.handle->complete(reason);
  if (command.handle) command.handle->complete(reason);
}

void Engine::obey(Command command, Time now) {
  if (command.kind == Command::Kind::leave) {
    leaving_until_ = now + seconds(options_.shutdown_timeout);
    for (const auto& [id, set] : sets_) set->leave();
    return;
  }
  if (command.kind == Command::Kind::abort) {
    aborting_ = true;
    fail(Status(ErrorCode::peer_lost,
                str(topology().describe(topology().rank), " failed: ", command.cause),
                topology().rank));
    return;
  }
  const auto set = sets_.find(command.set_id);
  if (!failure_.ok() || set == sets_.end()) {
    const Status reason = !failure_.ok()
                              ? failure_
                              : Status(ErrorCode::invalid_argument,
                                       str("process set ", command.set_id, " has been removed"));
    refuse(command, reason);
    return;
  }
  if (command.kind == Command::Kind::join) {
    set->second->join(std::move(command.handle));
    return;
  }
  for (const Submission& submission : command.submissions) {
    std::erase_if(refused_elsewhere_,
                  [&](const auto& refusal) { return refusal.second == submission.request.name; });
  }
  set->second->submit(std::move(command.submissions), now);
}

// --- The end

bool Engine::may_stop(Time now) const {
  if (aborting_) return true;
  if (!leaving_until_) return false;
  if (!failure_.ok() || now >= *leaving_until_) return true;
  return is_over();
}

void Engine::wind_up() {
  std::vector<Command> commands;
  Status reason = failure_;
  {
    const std::lock_guard lock(queue_mutex_);
    accepting_ = false;
    if (refusal_.ok()) refusal_ = Status(ErrorCode::shutdown, "this rank has shut down");
    if (reason.ok()) reason = refusal_;
    commands.swap(queue_);
  }
  if (in_flight()) {
    // The others count on what is in flight: to them this is no good-bye, but a loss.
    fail(Status(ErrorCode::peer_lost,
                str(topology().describe(topology().rank), " shut down with batches in flight"),
                topology().rank));
    reason = failure_;
  }
  for (const auto& [id, set] : sets_) set->fail_all(reason);
  for (const Command& command : commands) refuse(command, reason);
  const Status closed = world_.control->close(Clock::now() + seconds(farewell_seconds));
  if (!closed.ok()) log(LogLevel::debug, "closing the control lane: ", closed.to_string());
}

// --- Process sets

void Engine::open_set(std::shared_ptr<const ProcessSetMembers> members) {
  const int id = members->id;
  SetCoordinator::Events events;
  events.send = [this, id](int peer, std::vector<std::byte> message) {
    Writer writer;
    writer.byte(static_cast<std::uint8_t>(LaneMessage::negotiation));
    writer.unsigned_integer(static_cast<std::uint64_t>(id));
    std::vector<std::byte> framed = writer.take();
    framed.insert(framed.end(), message.begin(), message.end());
    send(peer, std::move(framed));
  };
  events.administer = [this](const Response& response, Submission submission) {
    administer(response, std::move(submission));
  };
  events.awaited_here = [this, id](const std::string& name) {
    for (const auto& [other, set] : sets_) {
      if (other != id && set->is_pending(name)) return refuse_elsewhere(id, name, other);
    }
  };
  events.failed = [this, id](const Response& response) {
    if (response.status.code() != ErrorCode::mismatch || response.request.splits.size() != 1)
      return;
    const auto other = static_cast<int>(response.request.splits.front());
    const auto set = sets_.find(other);
    if (set == sets_.end() || set->second->is_pending(response.request.name)) return;
    refuse_elsewhere(other, response.request.name, id);
  };
  events.joined = [this, id] {  // ranks have numbered what they did not sit out
    const std::lock_guard lock(queue_mutex_);
    next_unnamed_[id] = 0;
  };
  const ExecutionContext context{backend_.get(), &metrics_, &timeline_, world_.host};
  sets_[id] = std::make_unique<SetCoordinator>(std::move(members), options_, context,
                                               *world_.transport, std::move(events));
}

// Ranks that hand one name to different process sets would wait for each other for ever. A rank
// that learns that a set waits for a name which it has handed to another set tells both; once,
// until the application submits the name again, to whichever set, since a second refusal would meet
// the next operation of that name.
void Engine::refuse_elsewhere(int set_id, const std::string& name, int other_set) {
  if (!refused_elsewhere_.emplace(set_id, name).second) return;
  const auto called = [](int id) {
    return id == 0 ? std::string("the world") : str("process set ", id);
  };
  const Status why(ErrorCode::mismatch,
                   str("process set differs between ranks: rank ", topology().rank,
                       " submitted it to ", called(other_set), ", others to ", called(set_id)));
  sets_.at(set_id)->refuse(name, why, {other_set}, Clock::now());
}

void Engine::administer(const Response& response, Submission submission) {
  const auto& arguments = response.request.splits;
  if (response.request.collective == Collective::remove_process_set) {
    const auto id = static_cast<int>(arguments.front());
    const Status status = process_sets_.remove(id);
    if (const auto set = sets_.find(id); status.ok() && set != sets_.end()) {
      set->second->retire(
          Status(ErrorCode::shutdown, str("process set ", id, " has been removed")));
    }
    submission.handle->complete(status);
    return;
  }
  auto added = process_sets_.add({arguments.begin(), arguments.end()});
  if (!added) {
    submission.handle->complete(added.status());
    return;
  }
  const int id = added.value()->id;
  if (added.value()->rank >= 0) {
    open_set(added.value());
    if (leaving_until_) sets_.at(id)->leave();
  }
  // Messages for it may have come from ranks that heard of it earlier.
  if (auto early = early_.extract(id)) {
    for (const EarlyMessage& message : early.mapped()) {
      receive(message.peer, message.message, Clock::now());
    }
  }
  Output output;
  output.process_set = id;
  submission.handle->complete({}, std::move(output));
}

// --- Messages and failures

void Engine::send(int peer, std::vector<std::byte> message) {
  metrics_.control_messages_sent.add(1);
  metrics_.control_bytes_sent.add(static_cast<std::int64_t>(message.size()));
  world_.control->post(peer, std::move(message));
}

void Engine::receive(int peer, std::span<const std::byte> message, Time now) {
  Reader reader(message);
  const auto kind = static_cast<LaneMessage>(reader.byte());
  if (kind == LaneMessage::failure) return receive_failure(peer, message.subspan(1));
  const auto id = static_cast<int>(reader.unsigned_integer());
  if (!reader.ok() || kind != LaneMessage::negotiation || !failure_.ok()) return;
  if (const auto set = sets_.find(id); set != sets_.end()) {
    set->second->receive(peer, reader.rest(), now);
  } else if (!process_sets_.existed(id)) {
    early_[id].push_back({peer, {message.begin(), message.end()}});
  }
}

void Engine::receive_failure(int peer, std::span<const std::byte> payload) {
  Reader reader(payload);
  const Status reason = read_status(reader);
  if (!reader.ok() || reason.ok() || !failure_.ok()) return;
  log(LogLevel::debug, "rank ", peer, " tells of a failure: ", reason.to_string());
  // What came before it comes first: a rank may have left in good order, and another have failed
  // because of that.
  const Time now = Clock::now();
  for (const auto& [id, set] : sets_) set->step(now);
  if (is_over()) return;
  fail(reason);
}

// Whether every set has ended and nothing that was agreed on before is under way: nobody is needed
// any more.
bool Engine::is_over() const {
  return std::all_of(sets_.begin(), sets_.end(), [](const auto& set) {
    return set.second->closed() && !set.second->in_flight();
  });
}

void Engine::lose(int peer, const Status& cause) {
  if (is_over()) return;
  fail(Status(ErrorCode::peer_lost, str(topology().describe(peer), " is gone"), peer)
           .because(cause));
}

void Engine::fail(const Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  if (world_.host) world_.host->header(topology().rank).has_failed.store(1);
  log(LogLevel::debug, "the world is broken: ", reason.to_string());
  {
    const std::lock_guard lock(queue_mutex_);
    accepting_ = false;
    refusal_ = reason;
  }
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(LaneMessage::failure));
  write(writer, reason);
  const std::vector<std::byte> message = writer.take();
  for (const int peer : neighbours()) send(peer, message);
  world_.transport->abort(reason);
  for (const auto& [id, set] : sets_) set->fail_all(reason);
}

}  // namespace rueda
