#include "coordinator/epoch.h"

#include <utility>

#include "coordinator/set_room.h"
#include "core/earlier.h"
#include "core/in_quotes.h"
#include "core/log.h"
#include "core/strings.h"
#include "plan/inquiry.h"

namespace rueda {

namespace {

constexpr double goodbye_seconds = 5;

std::string called(const std::string& name) {
  return name.empty() ? "a tensor without a name" : in_quotes(name);
}

MessageStalls::Actions report_stalls(ActiveMessages& control, Metrics& metrics) {
  return {.ask =
              [&control](int peer) {
                control.send(peer, ControlMessage::where,
                             encode_whereabouts_question(message_stalls_set));
              },
          .warn =
              [&metrics](const std::string& report) {
                metrics.stall_warnings.add(1);
                log(LogLevel::warning, report);
              }};
}

}  // namespace

Epoch::Epoch(World world, const EpochServices& services, LossPolicy on_loss,
             std::shared_ptr<ProcessSets> sets)
    : world_(std::move(world)),
      services_(services),
      transport_name_(world_.transport->name()),
      process_sets_(
          sets ? std::move(sets)
               : std::make_shared<ProcessSets>(world_.topology.rank, world_.topology.size)),
      algorithms_(world_, services_.options),
      backend_(algorithms_.make_backend()),
      devices_(make_device_backend(services_.options, *backend_)),
      control_(*world_.control, services_.metrics),
      departures_(*world_.control),
      stalls_(world_.topology.rank, seconds(services_.options.stall_warning),
              report_stalls(control_, services_.metrics)),
      messages_(
          world_.host, *world_.transport, departures_,
          [this](int peer, std::span<const std::byte> message) {
            control_.send(peer, ControlMessage::point_to_point, message);
          },
          [this](int id) {
            return id > 0 && process_sets_->existed(id) && !process_sets_->find(id);
          },
          &stalls_),
      tables_(messages_, control_, departures_, services_),
      whereabouts_(control_),
      sets_(*process_sets_, messages_, *devices_, services_),
      changes_({world_, algorithms_, *backend_, *devices_, control_, messages_, *process_sets_},
               sets_, services_),
      losses_(world_, {control_, departures_, sets_, changes_, messages_, tables_, *devices_},
              services_, on_loss) {
  handle_messages();
}

Status Epoch::open() {
  if (!algorithms_.status().ok()) return algorithms_.status();
  world_.control->on_loss(
      [this](int peer, const Status& cause) { losses_.on_peer_lost(peer, cause); });
  const Time deadline = Clock::now() + seconds(services_.options.init_timeout);
  Status connected = world_.control->connect(losses_.neighbours(), deadline);
  return connected.ok() ? changes_.open() : connected;
}

// Once the epoch is broken, only the messages that Losses handles are answered.
void Epoch::handle_messages() {
  control_.handle(ControlMessage::negotiation,
                  [this](int peer, std::span<const std::byte> payload) {
                    return changes_.receive(peer, payload);
                  });
  control_.handle(ControlMessage::whereabouts,
                  [this](int peer, std::span<const std::byte> payload) {
                    auto answer = decode_whereabouts_answer(payload);
                    if (!answer) return false;
                    if (answer->set_id != message_stalls_set) {
                      sets_.hear_whereabouts(peer, std::move(*answer));
                    } else if (!losses_.has_failed()) {
                      stalls_.hear(peer, std::move(answer->text), Clock::now());
                    }
                    return true;
                  });
  control_.handle(ControlMessage::where, [this](int peer, std::span<const std::byte> payload) {
    return whereabouts_.receive(peer, payload, Clock::now());
  });
  control_.handle(ControlMessage::point_to_point,
                  [this](int peer, std::span<const std::byte> payload) {
                    if (!losses_.has_failed()) messages_.receive(peer, payload);
                    return true;
                  });
  control_.handle(ControlMessage::table_request,
                  [this](int peer, std::span<const std::byte> payload) {
                    return losses_.has_failed() || tables_.receive_request(peer, payload);
                  });
  control_.handle(ControlMessage::table_answer,
                  [this](int peer, std::span<const std::byte> payload) {
                    return losses_.has_failed() || tables_.receive_answer(peer, payload);
                  });
}

// --- Submissions and commands

void Epoch::prepare(std::vector<Submission>& submissions) const {
  const Submission* before = nullptr;  // the last one whose stream was marked
  for (Submission& submission : submissions) {
    Request& request = submission.request;
    if (!request.error.ok()) continue;
    if (request.collective == Collective::add_process_set && !submission.room) {
      auto room = reserve_room(world_, request.set_ranks);
      if (!room) {
        request.error = room.status();
        continue;
      }
      submission.room = std::move(room).value();
    }
    if (submission.device == host_device || submission.ready) continue;
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
      const Topology& topology = world_.topology;
      request.error = Status(marked.status().code(),
                             str(called(request.name), " on ", topology.describe(topology.rank)))
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

void Epoch::carry_out(Command command, Time now) {
  const Topology& topology = world_.topology;
  switch (command.kind) {
    case Command::Kind::leave:
      leaving_until_ = now + seconds(services_.options.shutdown_timeout);
      return sets_.leave();
    case Command::Kind::abort:
      stopping_ = true;
      return losses_.fail(Status(ErrorCode::peer_lost,
                                 str(topology.describe(topology.rank), " failed: ", command.cause),
                                 topology.rank));
    case Command::Kind::destroy: return changes_.destroy(command.set_id);
    case Command::Kind::wake: return;
    case Command::Kind::answer_changes:
      changes_.answer_late(losses_.failure());  // ok while nothing has failed
      return command.handle->complete({});
    case Command::Kind::form:
    case Command::Kind::open_table:
    case Command::Kind::use_table:
    case Command::Kind::close_table:
    case Command::Kind::submit:
    case Command::Kind::message:
    case Command::Kind::join: break;
  }
  if (losses_.has_failed()) return command.refuse(losses_.failure());
  if (command.table) return tables_.carry_out(std::move(command));
  if (command.kind == Command::Kind::form) return changes_.form(command);
  sets_.start(std::move(command), now);
}

// --- Progress

bool Epoch::advance(Time now, Readable readable) {
  // If a message is expected at any moment, poll for it instead of waiting for a notification.
  bool moved = (readable.first || awaits_messages()) && world_.control->progress();
  if (losses_.has_failed()) return moved;
  // Others may need answers from the transport after this rank's part is done: over a network, lost
  // packets are sent again and acknowledged again.
  if (uses_transport() || readable.second || world_.transport->has_work() ||
      is_due(world_.transport->next_look(), now)) {
    moved = world_.transport->progress() || moved;
  }
  moved = sets_.step(now) || moved;
  if (losses_.has_failed()) return true;
  if (sets_.is_departing()) {
    if (!std::exchange(ends_in_order_, true)) world_.transport->end_in_order();
    moved = sets_.end_without([this](int rank) { return losses_.has_left(rank); }, now) || moved;
  }
  moved = messages_.step(now) || moved;
  moved = tables_.step(now) || moved;
  moved = whereabouts_.step(now) || moved;
  if (Status status = devices_->watch(now); !status.ok()) {
    losses_.fail(status);
    return true;
  }
  losses_.look_at_doubts(now);
  if (losses_.has_failed()) return true;
  if (losses_.minds_silence()) {  // otherwise there is no need to ask what is in progress
    const bool is_waiting = is_active() || awaits_messages() || services_.long_waits.any();
    losses_.look_for_silence(now, is_waiting);
    if (losses_.has_failed()) return true;
  }
  if (Status status = sets_.failed_transfer(now); !status.ok()) {
    losses_.fail(status);
    return true;
  }
  return moved;
}

Progress::Work::Arming Epoch::arm() {
  if (world_.transport->has_work()) return Arming::refused;
  if (!uses_transport()) return Arming::not_needed;
  return world_.transport->arm() ? Arming::armed : Arming::refused;
}

bool Epoch::is_active() const {
  return is_in_flight() || (!losses_.has_failed() && world_.transport->has_work());
}

bool Epoch::is_in_flight() const {
  return !losses_.has_failed() &&
         (messages_.in_flight() || tables_.in_flight() || sets_.in_flight());
}

bool Epoch::uses_transport() const {
  return !losses_.has_failed() && (messages_.uses_transport() || sets_.uses_transport());
}

bool Epoch::requires_polling() const {
  if (uses_transport() && world_.transport->requires_polling()) return true;
  return !losses_.has_failed() && sets_.must_be_polled();
}

Progress::Work::OnNetwork Epoch::awaits_network() const {
  if (!uses_transport() || world_.transport->wait_fd() < 0) return OnNetwork::nothing;
  return world_.transport->awaits_much() ? OnNetwork::much : OnNetwork::little;
}

bool Epoch::awaits_messages() const {
  return messages_.expects() || tables_.expects() || sets_.negotiates();
}

Epoch::Deadlines Epoch::deadlines() const {
  std::optional<Time> earliest = leaving_until_;
  if (losses_.has_failed()) return {earliest, {}};
  earliest = earlier(earliest, messages_.next_deadline());
  earliest = earlier(earliest, tables_.next_deadline());
  earliest = earlier(earliest, whereabouts_.next_look());
  earliest = earlier(earliest, devices_->next_look());
  earliest = earlier(earliest, losses_.next_look());
  // Like a report, a look of the transport may come somewhat late, and keeps nobody from working.
  const auto look = earlier(stalls_.next_look(), world_.transport->next_look());
  return {earlier(earliest, sets_.next_deadline()), look};
}

// --- The end

void Epoch::fail_internal(const std::exception& error) {
  stopping_ = true;
  const Topology& topology = world_.topology;
  losses_.fail(Status(
      ErrorCode::internal,
      str("the coordinator of ", topology.describe(topology.rank), " failed: ", error.what()),
      topology.rank));
}

bool Epoch::may_stop(Time now) const {
  if (stopping_) return true;
  if (!leaving_until_) return false;
  if (losses_.has_failed() || now >= *leaving_until_) return true;
  return losses_.are_harmless();
}

void Epoch::wind_up() {
  const Topology& topology = world_.topology;
  services_.commands.close(losses_.has_failed()
                               ? losses_.failure()
                               : Status(ErrorCode::shutdown, "this rank has shut down"));
  const std::vector<Command> commands = services_.commands.take();
  if (is_in_flight()) {
    // The others rely on what is in flight: to them this is a loss, not a good-bye.
    losses_.fail(Status(ErrorCode::peer_lost,
                        str(topology.describe(topology.rank), " shut down with batches in flight"),
                        topology.rank));
  }
  const Status reason = losses_.has_failed() ? losses_.failure() : services_.commands.refusal(0);
  if (const auto& memory = world_.host.memory()) {
    // No rank accepts its messages any more.
    memory->header(memory->rank())
        .world_end.store(losses_.has_failed() ? world_is_broken : world_is_left);
    memory->give_up();
  }
  sets_.break_off(reason);
  changes_.answer_late(reason);
  messages_.leave_all();
  if (!losses_.has_failed()) messages_.withdraw_all();
  messages_.fail_all(reason);
  tables_.fail_all(reason);
  for (const Command& command : commands) command.refuse(reason);
  const Status closed = world_.control->close(Clock::now() + seconds(goodbye_seconds));
  if (!closed.ok()) log(LogLevel::debug, "closing the control plane: ", closed.to_string());
  devices_->close();
}

}  // namespace rueda
