#include "coordinator/losses.h"

#include <algorithm>
#include <map>

#include "core/log.h"
#include "core/strings.h"
#include "onehost/process_state.h"
#include "plan/negotiation_message.h"
#include "plan/tree.h"

namespace rueda {

namespace {

constexpr int world_fanout = 4;

}  // namespace

Losses::Losses(const World& world, const Concerned& concerned, const EpochServices& services,
               LossPolicy on_loss)
    : world_(world),
      concerned_(concerned),
      services_(services),
      on_loss_(on_loss),
      minds_silence_(services.options.recovery == "on"),
      neighbours_(Tree(world.topology.rank, world.topology.size, world_fanout).neighbours()),
      heartbeat_(neighbours_, minds_silence_ ? seconds(services.options.heartbeat) : Duration()) {
  handle_messages();
}

bool Losses::are_harmless() const {
  return !concerned_.messages.in_flight() && !concerned_.tables.in_flight() &&
         concerned_.sets.are_over();
}

// --- Detecting losses

void Losses::handle_messages() {
  concerned_.control.handle(ControlMessage::failure,
                            [this](int peer, std::span<const std::byte> payload) {
                              return receive_failure(peer, payload);
                            });
  concerned_.control.handle(
      ControlMessage::loss,
      [this](int /*peer*/, std::span<const std::byte> payload) { return receive_loss(payload); });
  concerned_.control.handle(ControlMessage::question,
                            [this](int peer, std::span<const std::byte> payload) {
                              if (!payload.empty()) return false;
                              concerned_.control.send(peer, ControlMessage::answer, {});
                              return true;
                            });
  concerned_.control.handle(ControlMessage::answer,
                            [this](int peer, std::span<const std::byte> payload) {
                              heartbeat_.hear(peer, Clock::now());
                              return payload.empty();
                            });
}

bool Losses::receive_failure(int peer, std::span<const std::byte> payload) {
  Reader reader(payload);
  const Status reason = read_status(reader);
  if (!reader.ok() || reason.ok()) return false;
  if (has_failed()) return true;
  log(LogLevel::debug, "rank ", peer, " tells of a failure: ", reason.to_string());
  // Earlier messages are handled first: a rank may have left cleanly, and another may have failed
  // because of that.
  const Time now = Clock::now();
  concerned_.sets.step_once(now);
  if (are_harmless()) return true;
  // A rank that reports its own failure is lost; a failure that it reports of others concerns all.
  reason.peer() == peer ? lose(peer, reason) : fail(reason);
  return true;
}

bool Losses::receive_loss(std::span<const std::byte> payload) {
  Reader reader(payload);
  const Status reason = read_status(reader);
  const int rank = reason.peer();
  if (!reader.ok() || reason.ok() || rank < 0 || rank >= world_.topology.size) return false;
  lose(rank, reason);
  return true;
}

void Losses::on_peer_lost(int peer, const Status& cause) {
  // First, what the peer sent before its end: it may have done its part of what is in flight.
  if (!has_failed()) concerned_.sets.step_once(Clock::now());
  if (are_harmless() || may_have_left(peer)) return;
  if (will_be_told_of(peer) && cause.details().reason != ErrorReason::unreachable) {
    log(LogLevel::debug, world_.topology.describe(peer), " has left or died: ", cause.to_string());
    return concerned_.departures.doubt(
        peer, {cause, Clock::now() + seconds(services_.options.shutdown_timeout)});
  }
  conclude_loss(peer, cause);
}

void Losses::conclude_loss(int peer, const Status& cause) {
  const bool is_own = peer == world_.topology.rank;
  lose(peer, Status(ErrorCode::peer_lost,
                    world_.topology.describe(peer) + (is_own ? " cannot go on" : " is gone"), peer,
                    {.reason = cause.details().reason})
                 .because(cause));
}

// A rank that leaves says good-bye to its connected peers. Other ranks cannot connect when they
// first have a message for it; only that message fails. Only the first of the leaving ranks is
// announced; if another one has died instead, its neighbours in the tree know and report it.
bool Losses::may_have_left(int peer) const {
  return peer != world_.topology.rank && !world_.control->was_connected(peer) &&
         concerned_.sets.may_do_without(peer);
}

// Of a rank to which this one never had a connection: by one of its neighbours if it has died, and
// otherwise when this rank learns that ranks leave.
bool Losses::will_be_told_of(int peer) const {
  if (peer == world_.topology.rank || world_.control->was_connected(peer)) return false;
  const std::vector<int> tellers = Tree(peer, world_.topology.size, world_fanout).neighbours();
  return std::any_of(tellers.begin(), tellers.end(), [this](int rank) {
    return rank != world_.topology.rank && !lost_.contains(rank);
  });
}

void Losses::look_at_doubts(Time now) {
  if (concerned_.departures.doubts().empty()) return;
  // A copy, since what is concluded of one rank may settle others.
  const std::map<int, Departures::Doubt> doubts = concerned_.departures.doubts();
  for (const auto& [peer, doubt] : doubts) {
    if (has_failed()) return;
    if (are_harmless() || may_have_left(peer)) {
      concerned_.departures.settle(peer);
    } else if (now >= doubt.end || !will_be_told_of(peer)) {
      conclude_loss(peer, doubt.cause);
    }
  }
}

bool Losses::has_left(int rank) {
  if (concerned_.departures.has_left(rank)) return true;
  // Only a connected rank says good-bye, and a message opens the connection.
  if (!world_.control->was_connected(rank) && asked_.insert(rank).second) {
    concerned_.control.send(rank, ControlMessage::question, {});
  }
  return false;
}

void Losses::look_for_silence(Time now, bool is_waiting) {
  const Heartbeat::Look look = heartbeat_.look(now, is_waiting);
  const Departures& departures = concerned_.departures;
  if (look.ask) {
    for (const int peer : neighbours_) {
      if (departures.has_left(peer)) continue;
      concerned_.control.send(peer, ControlMessage::question, {});
      if (is_dumping_core(world_.process_of(peer))) return lose_crashed(peer);
    }
  }
  if (!look.silent) return;
  const int peer = *look.silent;
  // Its process may do something else now, and must not be taken for a frozen one.
  if (departures.has_left(peer)) return heartbeat_.hear(peer, now);
  if (is_excused(peer, now)) return;
  lose(peer, Status(ErrorCode::peer_lost,
                    str(world_.topology.describe(peer), " has not answered for ",
                        services_.options.heartbeat, " s"),
                    peer, {.reason = ErrorReason::unreachable}));
}

// Before its silence is taken for that of a stopped process, which would be killed: that would cut
// off the dump.
void Losses::lose_crashed(int peer) {
  lose(peer, Status(ErrorCode::peer_lost,
                    str(world_.topology.describe(peer), " has crashed and is writing a core dump"),
                    peer, {.reason = ErrorReason::ended}));
}

// A rank of this host that is runnable but gets no processor is alive. An idle rank has answered by
// now, but this rank may not have read the answer, since it may have had no processor either.
bool Losses::is_excused(int peer, Time now) {
  const int process = world_.process_of(peer);
  if (process >= 0 && is_runnable(process) && heartbeat_.excuse(peer, now)) {
    log(LogLevel::debug, world_.topology.describe(peer),
        " does not answer, but is waiting for a processor");
    return true;
  }
  world_.control->progress();
  return !heartbeat_.is_silent(peer, now);
}

// --- What fails

void Losses::lose(int rank, const Status& reason) {
  if (has_failed()) return;
  if (on_loss_ == LossPolicy::end_world || rank == world_.topology.rank) return fail(reason);
  // The collective's transfers with other ranks are in flight as well, and cannot be undone.
  if (concerned_.sets.use_transport_with(rank)) return fail(reason);
  if (!lost_.insert(rank).second) return;
  concerned_.departures.settle(rank);
  log(LogLevel::debug, "rank ", rank, " is lost: ", reason.to_string());
  tell_neighbours(ControlMessage::loss, reason);
  // First everything that must not wait; steps that wait for other ranks to stop come after.
  if (const auto member = world_.host.rank_of(rank)) world_.host.memory()->give_up_on(*member);
  world_.transport->fail(rank, reason);
  concerned_.sets.lose(rank, reason);
  concerned_.messages.lose(rank, reason);
  concerned_.tables.lose(rank, reason);
}

void Losses::fail(const Status& reason) {
  if (has_failed()) return;
  failure_ = reason;
  const auto& memory = world_.host.memory();
  if (memory) memory->header(memory->rank()).world_end.store(world_is_broken);
  log(LogLevel::debug, "the world is broken: ", reason.to_string());
  fence(reason);
  services_.commands.close(reason);
  tell_neighbours(ControlMessage::failure, reason);
  // First everything that must not wait; steps that wait for other ranks to stop come after.
  if (memory) memory->give_up();
  world_.transport->abort(reason);
  concerned_.devices.abort(reason);
  concerned_.sets.break_off(reason);
  concerned_.changes.answer_late(reason);
  concerned_.messages.fail_all(reason);
  concerned_.tables.fail_all(reason);
  if (services_.on_failure) services_.on_failure(reason);
  // Last, since a disk may be slow.
  services_.recorder.dump(FlightRecorder::Occasion::failure, reason);
}

// Kills a silent rank of this host: it may be stopped in the middle of a transfer.
void Losses::fence(const Status& reason) {
  if (!minds_silence_) return;
  if (reason.details().reason != ErrorReason::unreachable || reason.peer() < 0) return;
  const auto member = world_.host.rank_of(reason.peer());
  if (!member || *member == world_.host.memory()->rank()) return;
  if (world_.host.memory()->fence(*member)) {
    log(LogLevel::warning, world_.topology.describe(reason.peer()),
        " was killed: it did not answer, and must not access this host's shared memory later");
  }
}

void Losses::tell_neighbours(ControlMessage kind, const Status& reason) {
  Writer writer;
  write(writer, reason);
  const std::vector<std::byte> message = writer.take();
  for (const int peer : neighbours_) concerned_.control.send(peer, kind, message);
}

}  // namespace rueda
