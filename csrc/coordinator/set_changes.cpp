#include "coordinator/set_changes.h"

#include <algorithm>
#include <utility>

#include "coordinator/set_room.h"
#include "core/strings.h"
#include "plan/farewell.h"
#include "plan/inquiry.h"
#include "plan/set_naming.h"
#include "plan/tree.h"
#include "plan/wire.h"

namespace rueda {

Status SetChanges::open() {
  open_set(means_.process_sets.find(0));
  for (const int id : means_.process_sets.ids()) {
    auto members = means_.process_sets.find(id);
    if (id == 0 || members->rank < 0) continue;
    auto room = reserve_room(means_.world, members->ranks);
    if (!room) return room.status();
    open_set(std::move(members), std::move(room).value());
  }
  return {};
}

void SetChanges::form(const Command& command) {
  // Reserves room first: messages for a set that is known, but not open, would be dropped.
  auto room = reserve_room(means_.world, command.ranks);
  if (!room) {
    // The others may have formed it, so the number counts as used here as well.
    means_.process_sets.give_up(command.set_id);
    forgo(command.set_id, command.ranks);
    return command.handle->complete(room.status());
  }
  auto formed = means_.process_sets.form(command.set_id, command.ranks);
  if (formed) start(formed.value(), std::move(room).value());
  command.handle->complete(formed.status());
}

// To the others, this is as if this rank had formed the set and left it at once.
void SetChanges::forgo(int set_id, std::vector<int> ranks) {
  forget_early(set_id);
  means_.messages.remove(set_id);
  forgo_room(means_.world, set_id, ranks, services_.options);
  std::sort(ranks.begin(), ranks.end());
  ProcessSetMembers members;
  members.id = set_id;
  members.ranks = std::move(ranks);
  const int member = members.member_of(means_.world.topology.rank).value();
  const SetNaming naming(members.ranks, members.name());
  for (const int other : Tree(member, naming.size(), negotiation_fanout).neighbours()) {
    const Tree there(other, naming.size(), negotiation_fanout);
    send(naming.world_rank(other), set_id, farewell_of(member, there, naming));
  }
}

void SetChanges::destroy(int set_id) {
  // If the others have ended the set before, it may be gone already, but not their messages.
  if (SetCoordinator* const set = sets_.find(set_id)) {
    set->leave();
    return means_.messages.leave(set_id);
  }
  means_.messages.remove(set_id);
}

// --- What all ranks have agreed on

void SetChanges::apply(const Response& response, Submission submission) {
  if (response.request.collective == Collective::remove_process_set) {
    const int id = response.request.set_id;
    bool was_offered = false;
    const Status status = means_.process_sets.remove(id, &was_offered);
    if (SetCoordinator* const set = sets_.find(id); status.ok() && set != nullptr) {
      set->retire(Status(ErrorCode::shutdown, str("process set ", id, " has been removed")));
      means_.messages.remove(id);
    }
    if (!status.ok()) return submission.handle->complete(status);
    return answer(std::move(submission.handle), 0, was_offered);
  }
  bool was_offered = false;
  auto added = means_.process_sets.add(response.request.set_ranks, &was_offered);
  if (!added) {
    submission.handle->complete(added.status());
    return;
  }
  start(added.value(), std::move(submission.room));
  answer(std::move(submission.handle), added.value()->id, was_offered);
}

// All ranks have made the change, or will. If the world is being replaced, some ranks have reported
// the change to the next world and others have not, so it counts only once this world continues.
void SetChanges::answer(OpenHandle handle, int set_id, bool is_late) {
  unanswered_.push_back({std::move(handle), set_id});
  if (!is_late) answer_late({});
}

void SetChanges::answer_late(const Status& status) {
  for (const Change& change : std::exchange(unanswered_, {})) {
    OperationOutput output;
    output.process_set = change.set_id;
    change.handle->complete(status, std::move(output));
  }
}

void SetChanges::start(const Members& members, Room room) {
  if (members->rank >= 0) open_set(members, std::move(room));
  // Messages for it may have come from ranks that learned of it earlier.
  SetCoordinator* const set = sets_.find(members->id);
  if (set == nullptr) return forget_early(members->id);
  const EarlyMessages::Kept early = early_.take(members->id);
  if (early.is_overfull) {
    set->break_off(
        str("too many messages for ", members->name(), " arrived before it was open on this rank"));
  }
  for (const auto& [peer, message] : early.messages) {
    count_dropped(set->receive(peer, message, Clock::now()) ? 0 : 1);
  }
}

void SetChanges::forget_early(int set_id) {
  count_dropped(early_.take(set_id).messages.size());
}

void SetChanges::count_dropped(std::size_t messages) {
  services_.metrics.control_messages_dropped.add(static_cast<std::int64_t>(messages));
}

void SetChanges::open_set(Members members, Room room) {
  const int id = members->id;
  const HostGroup& host = means_.world.host;
  services_.recorder.know_set(id, members->ranks);
  const ExecutionContext context{&means_.backend,
                                 &means_.devices,
                                 &services_.metrics,
                                 &services_.timeline,
                                 &services_.recorder,
                                 host.members(members->ranks),
                                 services_.options.join_average == "all",
                                 id};
  const HostParts parts = host.parts(members->ranks, members->rank);
  auto hosts = means_.algorithms.hosts_of(parts, members->ranks);
  sets_.add(std::make_unique<SetCoordinator>(std::move(members), parts, std::move(hosts),
                                             services_.options, context, *means_.world.transport,
                                             events_of(id), std::move(room)));
}

SetCoordinator::Events SetChanges::events_of(int id) {
  SetCoordinator::Events events;
  events.send = [this, id](int peer, const std::vector<std::byte>& message) {
    send(peer, id, message);
  };
  events.apply_set_change = [this](const Response& response, Submission submission) {
    apply(response, std::move(submission));
  };
  events.awaited_here = [this, id](const std::string& name) { sets_.look_elsewhere(id, name); };
  events.failed = [this, id](const Response& response) { sets_.hear_of_refusal(id, response); };
  // Ranks that had joined have not numbered the operations that they skipped.
  events.joined = [this, id] { services_.commands.restart_numbers(id); };
  events.ask_whereabouts = [this, id](int peer) {
    means_.control.send(peer, ControlMessage::where, encode_whereabouts_question(id));
  };
  return events;
}

void SetChanges::send(int peer, int set_id, std::span<const std::byte> message) {
  Writer writer;
  writer.unsigned_integer(static_cast<std::uint64_t>(set_id));
  std::vector<std::byte> framed = writer.take();
  framed.insert(framed.end(), message.begin(), message.end());
  means_.control.send(peer, ControlMessage::negotiation, framed);
}

bool SetChanges::receive(int peer, std::span<const std::byte> payload) {
  Reader reader(payload);
  const std::uint64_t number = reader.unsigned_integer();
  if (!reader.ok() || number >= end_of_formed) return false;
  if (sets_.are_broken()) return true;
  const auto id = static_cast<int>(number);
  if (SetCoordinator* const set = sets_.find(id)) {
    return set->receive(peer, reader.rest(), Clock::now());
  }
  if (means_.process_sets.existed(id)) return false;
  count_dropped(early_.keep(id, peer, reader.rest()));
  return true;
}

}  // namespace rueda
