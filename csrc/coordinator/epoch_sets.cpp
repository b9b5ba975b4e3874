// How the process sets of an epoch come and go.
#include <algorithm>
#include <utility>

#include "coordinator/epoch.h"
#include "core/strings.h"
#include "plan/inquiry.h"
#include "plan/wire.h"

namespace rueda {

Status Epoch::open_inherited_sets() {
  for (const int id : process_sets_->ids()) {
    auto members = process_sets_->find(id);
    if (id == 0 || members->rank < 0) continue;
    const Sharers sharers = sharers_of(members->ranks);
    auto room = Batches::reserve(sharers.members, sharers.spans_hosts);
    if (sharers.members && !room) return no_room();
    open_set(std::move(members), std::move(room));
  }
  return {};
}

void Epoch::create_group(const Command& command) {
  // Not before: what others have sent for a set that is known, but not open, would be dropped.
  const Sharers sharers = sharers_of(command.ranks);
  auto room = Batches::reserve(sharers.members, sharers.spans_hosts);
  if (sharers.members && !room) return command.handle->complete(no_room());
  auto formed = process_sets_->form(command.set_id, command.ranks);
  if (formed) start_set(formed.value(), std::move(room));
  command.handle->complete(formed.status());
}

SetCoordinator::Events Epoch::events_of(int id) {
  SetCoordinator::Events events;
  events.send = [this, id](int peer, const std::vector<std::byte>& message) {
    Writer writer;
    writer.unsigned_integer(static_cast<std::uint64_t>(id));
    std::vector<std::byte> framed = writer.take();
    framed.insert(framed.end(), message.begin(), message.end());
    control_.send(peer, ControlMessage::negotiation, framed);
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
    const auto other = sets_.find(response.other_set);
    if (other == sets_.end() || other->second->is_pending(response.request.name)) return;
    refuse_elsewhere(response.other_set, response.request.name, id);
  };
  // Ranks have numbered what they did not sit out.
  events.joined = [this, id] { services_.commands.restart_numbers(id); };
  events.ask_whereabouts = [this, id](int peer) {
    control_.send(peer, ControlMessage::where, encode_whereabouts_question(id));
  };
  return events;
}

void Epoch::open_set(std::shared_ptr<const ProcessSetMembers> members,
                     std::shared_ptr<ControlRoom> room) {
  const int id = members->id;
  services_.recorder.know_set(id, members->ranks);
  const ExecutionContext context{backend_.get(),
                                 devices_.get(),
                                 &services_.metrics,
                                 &services_.timeline,
                                 &services_.recorder,
                                 world_.host.members(members->ranks),
                                 services_.options.join_average == "all",
                                 id};
  const HostParts parts = world_.host.parts(members->ranks, members->rank);
  std::unique_ptr<const SetHosts> hosts;
  if (spans_hosts(parts)) {
    hosts = std::make_unique<SetHosts>(parts.members, parts.index, parts.rank, members->ranks,
                                       algorithms_across(parts), alltoall_across(parts),
                                       world_.link_costs);
  }
  sets_[id] = std::make_unique<SetCoordinator>(std::move(members), std::move(parts),
                                               std::move(hosts), services_.options, context,
                                               *world_.transport, events_of(id), std::move(room));
}

// Ranks that hand one name to different process sets would wait for each other for ever. A rank
// that learns that a set waits for a name which it has handed to another set tells both; once,
// until the application submits the name again, to whichever set, since a second refusal would meet
// the next operation of that name.
void Epoch::refuse_elsewhere(int set_id, const std::string& name, int other_set) {
  if (!refused_elsewhere_.emplace(set_id, name).second) return;
  const auto called = [](int id) {
    return id == 0 ? std::string("the world") : str("process set ", id);
  };
  const Status why(ErrorCode::mismatch,
                   str("process set differs between ranks: rank ", topology().rank,
                       " submitted it to ", called(other_set), ", others to ", called(set_id)),
                   -1, {.field = "process set", .values = {called(set_id), called(other_set)}});
  sets_.at(set_id)->submit(refusal_of(name, why, other_set), Clock::now());
}

void Epoch::apply_set_change(const Response& response, Submission submission) {
  if (response.request.collective == Collective::remove_process_set) {
    const int id = response.request.set_id;
    const Status status = process_sets_->remove(id);
    if (const auto set = sets_.find(id); status.ok() && set != sets_.end()) {
      set->second->retire(
          Status(ErrorCode::shutdown, str("process set ", id, " has been removed")));
      messages_.remove(id);
    }
    if (!status.ok()) return submission.handle->complete(status);
    return answer_change(std::move(submission.handle), 0);
  }
  auto added = process_sets_->add(response.request.set_ranks);
  if (!added) {
    submission.handle->complete(added.status());
    return;
  }
  start_set(added.value(), std::move(submission.room));
  answer_change(std::move(submission.handle), added.value()->id);
}

// All ranks have made the change, or will. Where the world is replaced some have told the next one
// of it and others have not, so it counts only once this world goes on.
void Epoch::answer_change(OpenHandle handle, int set_id) {
  unanswered_.push_back({std::move(handle), set_id});
  if (!process_sets_->is_offered()) answer_changes({});
}

void Epoch::answer_changes(const Status& status) {
  for (const Change& change : std::exchange(unanswered_, {})) {
    OperationOutput output;
    output.process_set = change.set_id;
    change.handle->complete(status, std::move(output));
  }
}

void Epoch::start_set(const std::shared_ptr<const ProcessSetMembers>& members,
                      std::shared_ptr<ControlRoom> room) {
  if (members->rank >= 0) {
    open_set(members, std::move(room));
    if (leaving_until_) sets_.at(members->id)->leave();
  }
  // Messages for it may have come from ranks that heard of it earlier.
  if (auto early = early_.extract(members->id)) {
    for (const EarlyMessage& message : early.mapped()) {
      receive_negotiation(message.peer, message.payload);
    }
  }
}

// Sets come and go without end: nothing of one that is gone is kept.
void Epoch::forget_set(int id) {
  devices_->forget(id);
  messages_.forget(id);
  std::erase_if(refused_elsewhere_, [&](const auto& refusal) { return refusal.first == id; });
  services_.commands.forget(id);
}

Epoch::Sharers Epoch::sharers_of(std::vector<int> ranks) const {
  std::sort(ranks.begin(), ranks.end());
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), topology().rank);
  if (own == ranks.end() || *own != topology().rank) return {};
  const bool are_known = ranks.front() >= 0 && ranks.back() < topology().size;
  if (!are_known) return {};
  if (HostMembers all = world_.host.members(ranks)) return {std::move(all), false};
  HostParts parts = world_.host.parts(ranks, static_cast<int>(own - ranks.begin()));
  if (!spans_hosts(parts)) return {};
  return {std::move(parts.own), true};
}

Status Epoch::no_room() const {
  return {
      ErrorCode::unsupported,
      str("rank ", topology().rank,
          " has no room for another process set in the memory that the ranks of its host share: "
          "remove sets that are not used any more"),
      topology().rank};
}

}  // namespace rueda
