// Opening, commands, progress and the end of an epoch.
#include "coordinator/epoch.h"

#include <algorithm>

#include "core/log.h"
#include "core/strings.h"
#include "plan/tree.h"

namespace rueda {

namespace {

constexpr int world_fanout = 4;
constexpr double goodbye_seconds = 5;

std::size_t kept_buffers(const Options& options) {
  return static_cast<std::size_t>(options.batches_in_flight) + 1;
}

// Without recovery a rank that is silent may come back: what waits for it has time-outs of its own.
Duration patience_of(const Options& options) {
  return options.recovery == "on" ? seconds(options.heartbeat) : Duration();
}

std::optional<Time> earlier(std::optional<Time> left, std::optional<Time> right) {
  if (!left || !right) return left ? left : right;
  return std::min(*left, *right);
}

std::string called(const std::string& name) {
  return name.empty() ? "a tensor without a name" : str("'", name, "'");
}

// On one host.
int most_members(const HostParts& parts) {
  std::size_t most = 1;
  for (const auto& part : parts.members) most = std::max(most, part.size());
  return static_cast<int>(most);
}

}  // namespace

Epoch::Epoch(World world, const EpochServices& services, LossPolicy on_loss,
             std::shared_ptr<ProcessSets> sets)
    : world_(std::move(world)),
      services_(services),
      on_loss_(on_loss),
      transport_name_(world_.transport->name()),
      process_sets_(
          sets ? std::move(sets)
               : std::make_shared<ProcessSets>(world_.topology.rank, world_.topology.size)),
      backend_(make_ring_backend(kept_buffers(services.options))),
      control_(*world_.control, services.metrics),
      messages_(
          world_.host, *world_.transport, *world_.control,
          [this](int peer, std::span<const std::byte> message) {
            control_.send(peer, ControlMessage::point_to_point, message);
          },
          [this](int id) {
            return id > 0 && process_sets_->existed(id) && !process_sets_->find(id);
          }),
      table_client_(
          messages_,
          [this](int peer, std::span<const std::byte> message) {
            control_.send(peer, ControlMessage::table_request, message);
          },
          [this](int peer) { return world_.control->has_left(peer); },
          {seconds(services.options.stall_warning), seconds(services.options.stall_error)},
          services.metrics),
      table_owner_(
          messages_, table_client_,
          [this](int peer, std::span<const std::byte> message) {
            control_.send(peer, ControlMessage::table_answer, message);
          },
          [this](int peer) { return world_.control->has_left(peer); },
          {seconds(services.options.stall_warning), seconds(services.options.stall_error)},
          services.metrics),
      whereabouts_(control_),
      heartbeat_(neighbours(), patience_of(services.options)) {
  handle_messages();
}

Status Epoch::open() {
  if (Status status = choose_backend(); !status.ok()) return status;
  world_.control->on_loss([this](int peer, const Status& cause) { on_peer_lost(peer, cause); });
  const std::vector<int> peers = neighbours();
  const Time deadline = Clock::now() + seconds(services_.options.init_timeout);
  if (Status status = world_.control->connect(peers, deadline); !status.ok()) return status;
  open_set(process_sets_->find(0));
  return open_inherited_sets();
}

Status Epoch::choose_backend() {
  const Options& options = services_.options;
  if (world_.host.memory()) {
    const bool measured = world_.host.costs().exchange > 0;
    if (measured) host_policy_ = policy_of(world_.host.costs());
    host_policy_.huge_pages = options.huge_pages == "auto";
    algorithms_ = AlgorithmTable::of_limit(static_cast<std::int64_t>(host_policy_.flat_limit));
  }
  auto chosen = AlgorithmTable::parse(options.algorithm, algorithms_);
  if (!chosen) {
    return Status(ErrorCode::initialization, "RUEDA_ALGORITHM").because(chosen.status());
  }
  algorithms_ = std::move(chosen).value();
  if (world_.host.memory()) {
    backend_ = make_onehost_backend(algorithms_, host_policy_, kept_buffers(options));
  }
  if (world_.host.knows_hosts() && !world_.host.is_world(topology().size)) {
    backend_ = make_hierarchical_backend(std::move(backend_), host_policy_, kept_buffers(options));
  }
  devices_ = make_device_backend(options, *backend_);
  return {};
}

bool Epoch::spans_hosts(const HostParts& parts) const {
  return world_.host.knows_hosts() && parts.leaders.size() > 1;
}

AlgorithmTable Epoch::algorithms_across(const HostParts& parts) const {
  const auto hosts = static_cast<int>(parts.members.size());
  const bool shares = most_members(parts) > 1;
  const AlgorithmTable measured = rueda::algorithms_across(world_.link_costs, hosts, shares);
  // What it does not accept has been refused.
  return AlgorithmTable::parse(services_.options.algorithm, measured, Extent::several_hosts)
      .value();
}

AlgorithmTable Epoch::alltoall_across(const HostParts& parts) const {
  const AlgorithmTable measured = rueda::alltoall_across(world_.link_costs, most_members(parts));
  return AlgorithmTable::parse(services_.options.algorithm, measured, Extent::alltoall_across)
      .value();
}

std::string Epoch::describe_algorithms() const {
  const auto world = process_sets_->find(0);
  const HostParts parts = world_.host.parts(world->ranks, world->rank);
  const std::string text = algorithms_of_world().to_string();
  if (!spans_hosts(parts) || most_members(parts) == 1) return text;
  return str(text, ";", alltoall_across(parts).to_string());
}

AlgorithmTable Epoch::algorithms_of_world() const {
  const auto world = process_sets_->find(0);
  const HostParts parts = world_.host.parts(world->ranks, world->rank);
  return spans_hosts(parts) ? algorithms_across(parts) : algorithms_;
}

std::vector<int> Epoch::neighbours() const {
  const Tree tree(topology().rank, topology().size, world_fanout);
  std::vector<int> ranks = tree.children();
  if (!tree.is_root()) ranks.push_back(tree.parent());
  return ranks;
}

// --- Submissions and commands

void Epoch::reserve_room(Submission& submission) const {
  const Request& request = submission.request;
  if (request.collective != Collective::add_process_set || !request.error.ok()) return;
  const Sharers sharers = sharers_of(request.set_ranks);
  if (!sharers.members) return;
  submission.room = Batches::reserve(sharers.members, sharers.spans_hosts);
  if (!submission.room) submission.request.error = no_room();
}

// What is wrong with a device travels as a request, as every local error does.
void Epoch::mark_streams(std::vector<Submission>& submissions) {
  const Submission* before = nullptr;
  for (Submission& submission : submissions) {
    if (submission.device == host_device || submission.ready || !submission.request.error.ok()) {
      continue;
    }
    if (before != nullptr && before->device == submission.device &&
        before->stream == submission.stream) {
      submission.ready = before->ready;
      continue;
    }
    auto marked = devices_->mark(submission.device, submission.stream);
    if (marked) {
      submission.ready = std::move(marked).value();
      before = &submission;
    } else {
      submission.request.error =
          Status(marked.status().code(),
                 str(called(submission.request.name), " on ", topology().describe(topology().rank)))
              .because(marked.status());
    }
  }
}

bool Epoch::take_commands(Time now) {
  std::vector<Command> commands = services_.commands.take();
  const bool moved = !commands.empty();
  for (Command& command : commands) carry_out(std::move(command), now);
  return moved;
}

void Epoch::carry_out_now(Command command) {
  try {
    const Time now = Clock::now();
    take_commands(now);
    carry_out(std::move(command), now);
  } catch (const std::exception& error) {
    fail_internal(error);
  }
}

RoundAtOnce* Epoch::round_at_once(int set_id) {
  if (!failure_.ok() || stopping_ || leaving_until_ || !refused_elsewhere_.empty()) return nullptr;
  const auto set = sets_.find(set_id);
  return set == sets_.end() ? nullptr : set->second->at_once();
}

void Epoch::carry_out(Command command, Time now) {
  switch (command.kind) {
    case Command::Kind::leave:
      leaving_until_ = now + seconds(services_.options.shutdown_timeout);
      for (const auto& [id, set] : sets_) set->leave();
      return;
    case Command::Kind::abort:
      stopping_ = true;
      return fail(Status(ErrorCode::peer_lost,
                         str(topology().describe(topology().rank), " failed: ", command.cause),
                         topology().rank));
    case Command::Kind::dissolve:
      // Where the others have ended the set before, it may be gone already; not so their messages.
      if (const auto set = sets_.find(command.set_id); set != sets_.end()) {
        set->second->leave();
        return messages_.leave(command.set_id);
      }
      return messages_.remove(command.set_id);
    case Command::Kind::answer_changes: answer_changes({}); return command.handle->complete({});
    case Command::Kind::form:
      return failure_.ok() ? create_group(command) : command.refuse(failure_);
    case Command::Kind::open_table:
    case Command::Kind::use_table:
    case Command::Kind::close_table: return start_on_table(std::move(command));
    case Command::Kind::submit:
    case Command::Kind::message:
    case Command::Kind::join: break;
  }
  const auto set = sets_.find(command.set_id);
  if (!failure_.ok()) return command.refuse(failure_);
  if (set == sets_.end()) {
    return command.refuse(Status(ErrorCode::invalid_argument,
                                 str("process set ", command.set_id, " has been removed")));
  }
  start(std::move(command), *set->second, now);
}

void Epoch::start_on_table(Command command) {
  if (!failure_.ok()) return command.refuse(failure_);
  if (command.kind == Command::Kind::use_table) {
    table_client_.submit(std::move(command.table->operation));
  } else if (command.kind == Command::Kind::open_table) {
    table_owner_.open(std::move(command.table->held));
    command.handle->complete({});
  } else {
    table_owner_.close(command.table->held.number);
  }
}

void Epoch::start(Command command, SetCoordinator& set, Time now) {
  if (command.kind == Command::Kind::message) {
    if (command.message.is_send) {
      services_.metrics.point_to_point_messages_sent.add(1);
      services_.metrics.point_to_point_bytes_sent.add(
          static_cast<std::int64_t>(command.message.bytes()));
    }
    return messages_.submit(std::move(command.message));
  }
  if (command.kind == Command::Kind::join) return set.join(std::move(command.handle));
  for (const Submission& submission : command.submissions) {
    std::erase_if(refused_elsewhere_,
                  [&](const auto& refusal) { return refusal.second == submission.request.name; });
  }
  set.submit(std::move(command.submissions), now);
}

// --- Progress

bool Epoch::advance(Time now, Readable readable) {
  // A message that is expected at any moment is looked for without waiting to be told of it.
  bool moved = (readable.first || negotiates()) && world_.control->progress();
  if (!failure_.ok()) return moved;
  // Others may wait for an answer of the transport after this rank's part is done: over a network
  // what was lost is sent again, and acknowledged again.
  if (uses_transport() || readable.second) moved = world_.transport->progress() || moved;
  moved = step_sets(now) || moved;
  if (!failure_.ok()) return true;
  moved = messages_.step(now) || moved;
  moved = table_owner_.step(now) || moved;
  moved = table_client_.step(now) || moved;
  moved = whereabouts_.step(now) || moved;
  if (Status status = devices_->watch(now); !status.ok()) {
    fail(status);
    return true;
  }
  look_for_silence(now);
  if (!failure_.ok()) return true;
  const Duration timeout = seconds(services_.options.transfer_timeout);
  for (const auto& [id, set] : sets_) {
    if (Status status = set->batches().broken(now, timeout); !status.ok()) {
      fail(status);
      return true;
    }
  }
  return moved;
}

bool Epoch::step_sets(Time now) {
  bool moved = false;
  for (auto set = sets_.begin(); set != sets_.end();) {
    const auto& [id, coordinator] = *set;
    moved = coordinator->step(now) || moved;
    if (!failure_.ok()) return true;
    if (coordinator->closed() && !messages_.is_closed(id)) {
      messages_.close(id, coordinator->closing(), now, seconds(services_.options.shutdown_timeout));
    }
    const bool gone =
        coordinator->closed() && !coordinator->in_flight() && !process_sets_->find(id);
    if (gone) forget_set(id);
    set = gone ? sets_.erase(set) : std::next(set);
  }
  return moved;
}

Progress::Work::Arming Epoch::arm() {
  if (!uses_transport()) return Arming::not_needed;
  return world_.transport->arm() ? Arming::armed : Arming::refused;
}

bool Epoch::is_active() const {
  return failure_.ok() && in_flight();
}

bool Epoch::in_flight() const {
  return messages_.in_flight() || table_owner_.in_flight() ||
         std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& set) { return set.second->in_flight(); });
}

bool Epoch::uses_transport() const {
  return failure_.ok() && (messages_.uses_transport() ||
                           std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
                             return set.second->batches().uses_transport();
                           }));
}

bool Epoch::requires_polling() const {
  if (uses_transport() && world_.transport->requires_polling()) return true;
  return failure_.ok() && std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
           return set.second->batches().must_be_polled();
         });
}

bool Epoch::negotiates() const {
  return messages_.expects() || table_client_.expects() ||
         std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& set) { return set.second->negotiates(); });
}

std::optional<Time> Epoch::next_deadline() const {
  std::optional<Time> earliest = leaving_until_;
  if (!failure_.ok()) return earliest;
  earliest = earlier(earliest, messages_.next_deadline());
  earliest = earlier(earliest, table_owner_.next_deadline());
  earliest = earlier(earliest, table_client_.next_deadline());
  earliest = earlier(earliest, whereabouts_.next_look());
  earliest = earlier(earliest, devices_->next_look());
  earliest = earlier(earliest, heartbeat_.next_look());
  const double timeout = services_.options.transfer_timeout;
  for (const auto& [id, set] : sets_) {
    earliest = earlier(earliest, set->next_deadline());
    const auto moved = set->batches().oldest_move();
    if (moved && timeout > 0) earliest = earlier(earliest, *moved + seconds(timeout));
  }
  return earliest;
}

// --- The end

// Whether every set has ended and nothing that was agreed on before is under way: nobody is needed
// any more.
bool Epoch::is_over() const {
  return !messages_.in_flight() && !table_owner_.in_flight() &&
         std::all_of(sets_.begin(), sets_.end(), [](const auto& set) {
           return set.second->closed() && !set.second->in_flight();
         });
}

bool Epoch::may_stop(Time now) const {
  if (stopping_) return true;
  if (!leaving_until_) return false;
  if (!failure_.ok() || now >= *leaving_until_) return true;
  return is_over();
}

void Epoch::wind_up() {
  services_.commands.close(failure_.ok() ? Status(ErrorCode::shutdown, "this rank has shut down")
                                         : failure_);
  Status reason = failure_.ok() ? services_.commands.refusal(0) : failure_;
  const std::vector<Command> commands = services_.commands.take();
  if (in_flight()) {
    // The others count on what is in flight: to them this is no good-bye, but a loss.
    fail(Status(ErrorCode::peer_lost,
                str(topology().describe(topology().rank), " shut down with batches in flight"),
                topology().rank));
    reason = failure_;
  }
  if (const auto& memory = world_.host.memory()) {
    memory->header(memory->rank()).has_failed.store(1);  // nobody takes its messages any more
    memory->give_up();
  }
  for (const auto& [id, set] : sets_) set->fail_all(reason);
  answer_changes(reason);
  messages_.leave_all();
  messages_.fail_all(reason);
  table_owner_.fail_all();
  table_client_.fail_all(reason);
  for (const Command& command : commands) command.refuse(reason);
  const Status closed = world_.control->close(Clock::now() + seconds(goodbye_seconds));
  if (!closed.ok()) log(LogLevel::debug, "closing the control plane: ", closed.to_string());
  devices_->close();
}

}  // namespace rueda
