#include "coordinator/open_sets.h"

#include <algorithm>

#include "core/earlier.h"
#include "core/strings.h"
#include "plan/farewell.h"
#include "plan/set_naming.h"
#include "plan/tree.h"

namespace rueda {

namespace {

template <class Sets, class Asks>
bool any(const Sets& sets, const Asks& asks) {
  return std::any_of(sets.begin(), sets.end(),
                     [&asks](const auto& set) { return asks(*set.second); });
}

}  // namespace

void OpenSets::add(std::unique_ptr<SetCoordinator> set) {
  const int id = set->members().id;
  const auto& added = sets_[id] = std::move(set);
  if (is_leaving_) added->leave();
}

void OpenSets::start(Command command, Time now) {
  SetCoordinator* const set = find(command.set_id);
  if (set == nullptr) {
    return command.refuse(Status(ErrorCode::invalid_argument,
                                 str("process set ", command.set_id, " has been removed")));
  }
  if (command.kind == Command::Kind::message) {
    if (command.message.is_send) {
      services_.metrics.point_to_point_messages_sent.add(1);
      services_.metrics.point_to_point_bytes_sent.add(
          static_cast<std::int64_t>(command.message.bytes()));
    }
    return messages_.submit(std::move(command.message));
  }
  if (command.kind == Command::Kind::join) return set->join(std::move(command.handle));
  for (const Submission& submission : command.submissions) {
    std::erase_if(refused_elsewhere_,
                  [&](const auto& refusal) { return refusal.second == submission.request.name; });
  }
  set->submit(std::move(command.submissions), now);
}

RoundAtOnce* OpenSets::at_once(int set_id) const {
  if (is_leaving_ || !refused_elsewhere_.empty()) return nullptr;
  SetCoordinator* const set = find(set_id);
  return set == nullptr ? nullptr : set->at_once();
}

void OpenSets::leave() {
  is_leaving_ = true;
  for (const auto& [id, set] : sets_) set->leave();
}

void OpenSets::hear_whereabouts(int peer, WhereaboutsAnswer answer) {
  SetCoordinator* const set = find(answer.set_id);
  if (are_broken_ || set == nullptr) return;  // the set has ended meanwhile
  set->hear_whereabouts(peer, std::move(answer.text), Clock::now());
}

// --- Names that ranks submit to different sets

void OpenSets::look_elsewhere(int set_id, const std::string& awaited) {
  for (const auto& [other, set] : sets_) {
    if (other != set_id && set->is_pending(awaited)) {
      return refuse_elsewhere(set_id, awaited, other);
    }
  }
}

void OpenSets::hear_of_refusal(int set_id, const Response& response) {
  const SetCoordinator* const other = find(response.other_set);
  if (other == nullptr || other->is_pending(response.request.name)) return;
  refuse_elsewhere(response.other_set, response.request.name, set_id);
}

// Refuses once, until the application submits the name again, to any set: a second refusal would
// hit the next operation of that name.
void OpenSets::refuse_elsewhere(int set_id, const std::string& name, int other_set) {
  if (!refused_elsewhere_.emplace(set_id, name).second) return;
  const auto called = [](int id) {
    return id == 0 ? std::string("the world") : str("process set ", id);
  };
  SetCoordinator& set = *sets_.at(set_id);
  const int own_rank = set.members().world_rank(set.members().rank);
  const Status why(ErrorCode::mismatch,
                   str("process set differs between ranks: rank ", own_rank, " submitted it to ",
                       called(other_set), ", others to ", called(set_id)),
                   -1, {.field = "process set", .values = {called(set_id), called(other_set)}});
  set.submit(refusal_of(name, why, other_set), Clock::now());
}

// --- Progress

bool OpenSets::step(Time now) {
  bool moved = false;
  for (auto set = sets_.begin(); set != sets_.end();) {
    const auto& [id, coordinator] = *set;
    moved = coordinator->step(now) || moved;
    if (are_broken_) return true;
    if (!coordinator->closing().ok() && !messages_.is_closed(id)) {
      const bool in_order = coordinator->closing().code() == ErrorCode::shutdown;
      if (id == 0 && in_order) note_departure(coordinator->closing());
      messages_.close(id, coordinator->closing(), now, seconds(services_.options.shutdown_timeout));
    }
    const bool gone =
        !coordinator->closing().ok() && !coordinator->in_flight() && !process_sets_.find(id);
    if (gone) forget(id);
    set = gone ? sets_.erase(set) : std::next(set);
  }
  return moved;
}

void OpenSets::note_departure(const Status& how) {
  is_departing_ = true;
  const std::lock_guard lock(departure_mutex_);
  departure_ = how;
}

Status OpenSets::departure() const {
  const std::lock_guard lock(departure_mutex_);
  return departure_;
}

bool OpenSets::end_without(const std::function<bool(int rank)>& has_left, Time now) {
  bool moved = false;
  for (const auto& [id, set] : sets_) {
    if (!set->closing().ok()) continue;
    const ProcessSetMembers& members = set->members();
    const Tree tree(members.rank, members.size(), negotiation_fanout);
    for (const int member : tree.neighbours()) {
      const int rank = members.world_rank(member);
      if (!has_left(rank) || !departed_.emplace(id, rank).second) continue;
      const SetNaming naming(members.ranks, members.name());
      set->receive(rank, farewell_of(member, tree, naming), now);
      moved = true;
    }
  }
  return moved;
}

void OpenSets::step_once(Time now) {
  for (const auto& [id, set] : sets_) set->step(now);
}

// A job may create and remove sets indefinitely, so nothing is kept of a set that is gone.
void OpenSets::forget(int id) {
  devices_.forget(id);
  messages_.forget(id);
  std::erase_if(refused_elsewhere_, [&](const auto& refusal) { return refusal.first == id; });
  std::erase_if(departed_, [&](const auto& member) { return member.first == id; });
  services_.commands.forget(id);
  services_.recorder.forget_set(id);
}

bool OpenSets::in_flight() const {
  return any(sets_, [](const SetCoordinator& set) { return set.in_flight(); });
}

bool OpenSets::uses_transport() const {
  return any(sets_, [](const SetCoordinator& set) { return set.batches().uses_transport(); });
}

bool OpenSets::must_be_polled() const {
  return any(sets_, [](const SetCoordinator& set) { return set.batches().must_be_polled(); });
}

bool OpenSets::negotiates() const {
  return any(sets_, [](const SetCoordinator& set) { return set.negotiates(); });
}

std::optional<Time> OpenSets::next_deadline() const {
  const double timeout = services_.options.transfer_timeout;
  std::optional<Time> earliest;
  for (const auto& [id, set] : sets_) {
    earliest = earlier(earliest, set->next_deadline());
    const auto moved = set->batches().oldest_move();
    if (moved && timeout > 0) earliest = earlier(earliest, *moved + seconds(timeout));
  }
  return earliest;
}

// --- The end

bool OpenSets::are_over() const {
  return !any(sets_,
              [](const SetCoordinator& set) { return set.closing().ok() || set.in_flight(); });
}

Status OpenSets::failed_transfer(Time now) const {
  const Duration timeout = seconds(services_.options.transfer_timeout);
  for (const auto& [id, set] : sets_) {
    if (Status status = set->batches().broken(now, timeout); !status.ok()) return status;
  }
  return {};
}

bool OpenSets::use_transport_with(int rank) const {
  return any(sets_, [rank](const SetCoordinator& set) {
    return set.members().has(rank) && set.batches().uses_transport();
  });
}

bool OpenSets::may_do_without(int rank) const {
  const SetCoordinator* const world = find(0);
  if (world == nullptr || world->closing().code() != ErrorCode::shutdown) return false;
  return !any(sets_, [rank](const SetCoordinator& set) {
    return set.members().has(rank) && set.in_flight();
  });
}

void OpenSets::lose(int rank, const Status& reason) {
  for (const auto& [id, set] : sets_) {
    if (!set->members().has(rank)) continue;
    services_.commands.close(id, reason);
    set->fail_all(reason);
  }
}

void OpenSets::break_off(const Status& reason) {
  are_broken_ = true;
  for (const auto& [id, set] : sets_) set->fail_all(reason);
}

std::vector<std::string> OpenSets::interrupted() const {
  std::vector<std::string> operations;
  for (const auto& [id, set] : sets_) {
    operations.insert(operations.end(), set->interrupted().begin(), set->interrupted().end());
  }
  return operations;
}

}  // namespace rueda
