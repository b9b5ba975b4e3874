// What the owner of the progress lock does for commands, messages, process sets and failures.
#include <algorithm>

#include "coordinator/engine.h"
#include "core/log.h"
#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

namespace {

enum class LaneMessage : std::uint8_t { negotiation, failure, point_to_point };

}  // namespace

// --- Commands

bool Engine::take_commands(Time now) {
  if (!progress_lock_->has(ProgressLock::queued)) return false;
  std::vector<Command> commands;
  {
    const std::lock_guard lock(queue_mutex_);
    progress_lock_->clear(ProgressLock::queued);
    commands.swap(queue_);
  }
  const bool moved = !commands.empty();
  for (Command& command : commands) handle_command(std::move(command), now);
  return moved;
}

void Engine::handle_command_now(Command command) {
  try {
    const Time now = Clock::now();
    take_commands(now);
    handle_command(std::move(command), now);
  } catch (const std::exception& error) {
    fail_internal(error);
  }
}

void Engine::refuse(const Command& command, const Status& reason) {
  for (const Submission& submission : command.submissions) submission.handle->complete(reason);
  if (command.handle) command.handle->complete(reason);
  if (command.message.handle) command.message.handle->complete(reason);
}

void Engine::handle_command(Command command, Time now) {
  if (command.kind == Command::Kind::leave) {
    leaving_until_ = now + seconds(options_.shutdown_timeout);
    for (const auto& [id, set] : sets_) set->leave();
    return;
  }
  if (command.kind == Command::Kind::abort) {
    stopping_ = true;
    fail(Status(ErrorCode::peer_lost,
                str(topology().describe(topology().rank), " failed: ", command.cause),
                topology().rank));
    return;
  }
  if (command.kind == Command::Kind::form && failure_.ok()) {
    // Not before: what others have sent for a set that is known, but not open, would be dropped.
    const HostMembers host = world_.host.members(command.ranks);
    auto room = SetCoordinator::reserve(host);
    if (host && !room) return command.handle->complete(no_room());
    auto formed = process_sets_.form(command.set_id, command.ranks);
    if (formed) start_set(formed.value(), std::move(room));
    return command.handle->complete(formed.status());
  }
  const auto set = sets_.find(command.set_id);
  if (command.kind == Command::Kind::dissolve) {
    if (set != sets_.end()) set->second->leave();
    messages_.leave(command.set_id);
    return;
  }
  if (!failure_.ok() || set == sets_.end()) {
    const Status reason = !failure_.ok()
                              ? failure_
                              : Status(ErrorCode::invalid_argument,
                                       str("process set ", command.set_id, " has been removed"));
    refuse(command, reason);
    return;
  }
  if (command.kind == Command::Kind::message) {
    messages_.submit(std::move(command.message));
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

// --- Process sets

void Engine::open_set(std::shared_ptr<const ProcessSetMembers> members,
                      std::shared_ptr<ControlRoom> room) {
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
  events.apply_set_change = [this](const Response& response, Submission submission) {
    apply_set_change(response, std::move(submission));
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
  const ExecutionContext context{backend_.get(),
                                 devices_.get(),
                                 &metrics_,
                                 &timeline_,
                                 world_.host.members(members->ranks),
                                 options_.join_average == "all",
                                 id};
  sets_[id] = std::make_unique<SetCoordinator>(
      std::move(members), options_, context, *world_.transport, std::move(events), std::move(room));
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

void Engine::apply_set_change(const Response& response, Submission submission) {
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
  start_set(added.value(), std::move(submission.room));
  Output output;
  output.process_set = added.value()->id;
  submission.handle->complete({}, std::move(output));
}

void Engine::start_set(const std::shared_ptr<const ProcessSetMembers>& members,
                       std::shared_ptr<ControlRoom> room) {
  if (members->rank >= 0) {
    open_set(members, std::move(room));
    if (leaving_until_) sets_.at(members->id)->leave();
  }
  // Messages for it may have come from ranks that heard of it earlier.
  if (auto early = early_.extract(members->id)) {
    for (const EarlyMessage& message : early.mapped()) {
      receive(message.peer, message.message, Clock::now());
    }
  }
}

// Sets come and go without end: nothing of one that is gone is kept.
void Engine::forget_set(int id) {
  devices_->forget(id);
  messages_.forget(id);
  std::erase_if(refused_elsewhere_, [&](const auto& refusal) { return refusal.first == id; });
  const std::lock_guard lock(queue_mutex_);
  next_unnamed_.erase(id);
}

// --- Messages and failures

void Engine::send(int peer, std::vector<std::byte> message) {
  metrics_.control_messages_sent.add(1);
  metrics_.control_bytes_sent.add(static_cast<std::int64_t>(message.size()));
  world_.control->post(peer, std::move(message));
}

void Engine::send_message(int peer, std::vector<std::byte> message) {
  message.insert(message.begin(), static_cast<std::byte>(LaneMessage::point_to_point));
  send(peer, std::move(message));
}

void Engine::receive(int peer, std::span<const std::byte> message, Time now) {
  Reader reader(message);
  const auto kind = static_cast<LaneMessage>(reader.byte());
  if (kind == LaneMessage::failure) return receive_failure(peer, message.subspan(1));
  if (kind == LaneMessage::point_to_point && failure_.ok()) {
    return messages_.receive(peer, message.subspan(1));
  }
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
  return !messages_.in_flight() && std::all_of(sets_.begin(), sets_.end(), [](const auto& set) {
    return set.second->closed() && !set.second->in_flight();
  });
}

void Engine::on_peer_lost(int peer, const Status& cause) {
  if (is_over()) return;
  fail(Status(ErrorCode::peer_lost, str(topology().describe(peer), " is gone"), peer)
           .because(cause));
}

void Engine::fail(const Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  if (const auto& memory = world_.host.memory()) memory->header(memory->rank()).has_failed.store(1);
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
  // All at once: what waits for other ranks to stop comes after.
  if (world_.host.memory()) world_.host.memory()->give_up();
  world_.transport->abort(reason);
  devices_->abort(reason);
  for (const auto& [id, set] : sets_) set->fail_all(reason);
  messages_.fail_all(reason);
}

}  // namespace rueda
