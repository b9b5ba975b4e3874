// Messages of the control plane, and what becomes of an epoch when a rank or this one fails.
#include <algorithm>

#include "coordinator/epoch.h"
#include "core/log.h"
#include "core/strings.h"
#include "onehost/process_state.h"
#include "plan/inquiry.h"
#include "plan/negotiation_message.h"

namespace rueda {

void Epoch::handle_messages() {
  control_.handle(ControlMessage::negotiation,
                  [this](int peer, std::span<const std::byte> payload) {
                    return receive_negotiation(peer, payload);
                  });
  control_.handle(ControlMessage::failure, [this](int peer, std::span<const std::byte> payload) {
    return receive_failure(peer, payload);
  });
  control_.handle(ControlMessage::loss, [this](int /*peer*/, std::span<const std::byte> payload) {
    return receive_loss(payload);
  });
  control_.handle(ControlMessage::question, [this](int peer, std::span<const std::byte> payload) {
    if (!payload.empty()) return false;
    control_.send(peer, ControlMessage::answer, {});
    return true;
  });
  control_.handle(ControlMessage::answer, [this](int peer, std::span<const std::byte> payload) {
    heartbeat_.hear(peer, Clock::now());
    return payload.empty();
  });
  control_.handle(ControlMessage::point_to_point,
                  [this](int peer, std::span<const std::byte> payload) {
                    if (failure_.ok()) messages_.receive(peer, payload);
                    return true;
                  });
  control_.handle(ControlMessage::where, [this](int peer, std::span<const std::byte> payload) {
    return whereabouts_.receive(peer, payload, Clock::now());
  });
  control_.handle(ControlMessage::whereabouts,
                  [this](int peer, std::span<const std::byte> payload) {
                    return receive_whereabouts(peer, payload);
                  });
  handle_table_messages();
}

void Epoch::handle_table_messages() {
  control_.handle(ControlMessage::table_request,
                  [this](int peer, std::span<const std::byte> payload) {
                    return !failure_.ok() || table_owner_.receive(peer, payload, Clock::now());
                  });
  control_.handle(ControlMessage::table_answer,
                  [this](int peer, std::span<const std::byte> payload) {
                    return !failure_.ok() || table_client_.receive(peer, payload);
                  });
}

bool Epoch::receive_whereabouts(int peer, std::span<const std::byte> payload) {
  auto answer = decode_whereabouts_answer(payload);
  if (!answer) return false;
  const auto set = sets_.find(answer->set_id);
  if (!failure_.ok() || set == sets_.end()) return true;  // it has ended meanwhile
  set->second->hear_whereabouts(peer, std::move(answer->text), Clock::now());
  return true;
}

bool Epoch::receive_negotiation(int peer, std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto id = static_cast<int>(reader.unsigned_integer());
  if (!reader.ok()) return false;
  if (!failure_.ok()) return true;
  if (const auto set = sets_.find(id); set != sets_.end()) {
    set->second->receive(peer, reader.rest(), Clock::now());
  } else if (!process_sets_->existed(id)) {
    early_[id].push_back({peer, {payload.begin(), payload.end()}});
  }
  return true;
}

bool Epoch::receive_failure(int peer, std::span<const std::byte> payload) {
  Reader reader(payload);
  const Status reason = read_status(reader);
  if (!reader.ok() || reason.ok()) return false;
  if (!failure_.ok()) return true;
  log(LogLevel::debug, "rank ", peer, " tells of a failure: ", reason.to_string());
  // What came before it comes first: a rank may have left in good order, and another have failed
  // because of that.
  const Time now = Clock::now();
  for (const auto& [id, set] : sets_) set->step(now);
  if (is_over()) return true;
  // A rank that tells of its own failure is lost; what it tells of others concerns all.
  reason.peer() == peer ? lose(peer, reason) : fail(reason);
  return true;
}

bool Epoch::receive_loss(std::span<const std::byte> payload) {
  Reader reader(payload);
  const Status reason = read_status(reader);
  const int rank = reason.peer();
  if (!reader.ok() || reason.ok() || rank < 0 || rank >= topology().size) return false;
  lose(rank, reason);
  return true;
}

void Epoch::on_peer_lost(int peer, const Status& cause) {
  if (is_over()) return;
  lose(peer, Status(ErrorCode::peer_lost, str(topology().describe(peer), " is gone"), peer)
                 .because(cause));
}

void Epoch::look_for_silence(Time now) {
  const Heartbeat::Look look = heartbeat_.look(now, in_flight() || negotiates());
  if (look.ask) {
    for (const int peer : neighbours()) control_.send(peer, ControlMessage::question, {});
  }
  if (!look.silent || is_excused(*look.silent, now)) return;
  const int peer = *look.silent;
  lose(peer, Status(ErrorCode::peer_lost,
                    str(topology().describe(peer), " has not answered for ",
                        services_.options.heartbeat, " s"),
                    peer, {.reason = ErrorReason::unreachable}));
}

// A rank of this host that gets no processor lives. One that does not want any has answered what it
// was asked, but the answer may not have been read here: this rank may have had no processor, too.
bool Epoch::is_excused(int peer, Time now) {
  const auto member = world_.host.rank_of(peer);
  const auto& memory = world_.host.memory();
  if (member && memory && is_runnable(memory->process_of(*member)) &&
      heartbeat_.excuse(peer, now)) {
    log(LogLevel::debug, topology().describe(peer), " does not answer, but would run");
    return true;
  }
  world_.control->progress();
  return !heartbeat_.is_silent(peer, now);
}

// Its neighbours in the world's tree notice the loss themselves, the others learn of it from
// theirs.
void Epoch::lose(int rank, const Status& reason) {
  if (!failure_.ok()) return;
  if (on_loss_ == LossPolicy::end_world || rank == topology().rank) return fail(reason);
  // Of a collective, transfers with others are under way as well, and cannot be taken back.
  const bool cannot_go_on = std::any_of(sets_.begin(), sets_.end(), [rank](const auto& set) {
    return set.second->members().has(rank) && set.second->batches().uses_transport();
  });
  if (cannot_go_on) return fail(reason);
  if (!lost_.insert(rank).second) return;
  log(LogLevel::debug, "rank ", rank, " is lost: ", reason.to_string());
  tell_neighbours(ControlMessage::loss, reason);
  // All at once: what waits for other ranks to stop comes after.
  if (const auto member = world_.host.rank_of(rank)) world_.host.memory()->give_up_on(*member);
  world_.transport->fail(rank, reason);
  for (const auto& [id, set] : sets_) {
    if (!set->members().has(rank)) continue;
    services_.commands.close(id, reason);
    set->fail_all(reason);
  }
  messages_.lose(rank, reason);
  table_owner_.lose(rank);
  table_client_.lose(rank, reason);
}

void Epoch::fail(const Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  const auto& memory = world_.host.memory();
  if (memory) memory->header(memory->rank()).has_failed.store(1);
  log(LogLevel::debug, "the world is broken: ", reason.to_string());
  fence(reason);
  services_.commands.close(reason);
  tell_neighbours(ControlMessage::failure, reason);
  // All at once: what waits for other ranks to stop comes after.
  if (memory) memory->give_up();
  world_.transport->abort(reason);
  devices_->abort(reason);
  for (const auto& [id, set] : sets_) set->fail_all(reason);
  answer_changes(reason);
  messages_.fail_all(reason);
  table_owner_.fail_all();
  table_client_.fail_all(reason);
  if (services_.on_failure) services_.on_failure(reason);
  services_.recorder.dump(reason.to_string());  // the last, for a disk may be slow
}

std::vector<std::string> Epoch::interrupted() const {
  std::vector<std::string> operations;
  for (const auto& [id, set] : sets_) {
    operations.insert(operations.end(), set->interrupted().begin(), set->interrupted().end());
  }
  return operations;
}

// A rank of this host that does not answer may be stopped in the middle of a transfer.
void Epoch::fence(const Status& reason) {
  if (services_.options.recovery != "on") return;
  if (reason.details().reason != ErrorReason::unreachable || reason.peer() < 0) return;
  const auto member = world_.host.rank_of(reason.peer());
  if (!member || *member == world_.host.memory()->rank()) return;
  if (world_.host.memory()->fence(*member)) {
    log(LogLevel::warning, topology().describe(reason.peer()),
        " was killed: it did not answer, and must not touch this host's memory later");
  }
}

void Epoch::tell_neighbours(ControlMessage kind, const Status& reason) {
  Writer writer;
  write(writer, reason);
  const std::vector<std::byte> message = writer.take();
  for (const int peer : neighbours()) control_.send(peer, kind, message);
}

// No memory for a message, say: without this rank the others cannot go on, and they shall know why.
void Epoch::fail_internal(const std::exception& error) {
  stopping_ = true;
  const int rank = topology().rank;
  fail(Status(ErrorCode::internal,
              str("the coordinator of ", topology().describe(rank), " failed: ", error.what()),
              rank));
}

}  // namespace rueda
