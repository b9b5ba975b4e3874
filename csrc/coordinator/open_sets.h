// The process sets that this rank is a member of, at work: what they are asked for, how they go on,
// and how what is under way in them ends. A set that has ended is let go of when nothing is under
// way in it any more; how sets begin and end, SetChanges says.
//
// Used by the owner of the progress lock only, but for what is said to be for any thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_backend.h"
#include "coordinator/command.h"
#include "coordinator/epoch_services.h"
#include "coordinator/point_to_point.h"
#include "coordinator/process_sets.h"
#include "coordinator/set_coordinator.h"

namespace rueda {

class OpenSets {
 public:
  // All is referred to. `messages`, which belong to sets, too, and `devices` are told of their end;
  // `process_sets`: which sets there are for the application.
  OpenSets(const ProcessSets& process_sets, PointToPoint& messages, DeviceBackend& devices,
           const EpochServices& services)
      : process_sets_(process_sets), messages_(messages), devices_(devices), services_(services) {}
  OpenSets(const OpenSets&) = delete;
  OpenSets& operator=(const OpenSets&) = delete;

  // Where this rank is leaving, it leaves this set, too.
  void add(std::unique_ptr<SetCoordinator> set);
  // Null where this rank has opened no such set, or nothing is left of it.
  [[nodiscard]] SetCoordinator* find(int id) const {
    const auto set = sets_.find(id);
    return set == sets_.end() ? nullptr : set->second.get();
  }

  // --- What the application asks for

  // Operations, a message or a join.
  void start(Command command, Time now);
  // For calls of the set that need no submission; null where they have to be submitted.
  [[nodiscard]] RoundAtOnce* at_once(int set_id) const;
  // This rank leaves all sets, also those that are still to come.
  void leave();

  // --- What others say

  // Where a member is that is waited for; false where the message is malformed.
  bool hear_whereabouts(int peer, std::span<const std::byte> payload);
  // Ranks that hand one name to different sets would wait for each other for ever. So a rank that
  // learns that a set waits for a name looks whether it has handed that to another set, and makes
  // it an error of both. The same where it hears of the error in one of them.
  void look_elsewhere(int set_id, const std::string& awaited);
  void hear_of_refusal(int set_id, const Response& response);

  // --- Progress

  // Goes on without blocking; returns whether anything happened.
  bool step(Time now);
  // With what has come already, in all sets that there are.
  void step_once(Time now);
  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool uses_transport() const;
  [[nodiscard]] bool must_be_polled() const;
  // Whether messages of other members are expected at any moment.
  [[nodiscard]] bool negotiates() const;
  [[nodiscard]] std::optional<Time> next_deadline() const;

  // --- The end

  // Whether all have ended and nothing that was agreed on before is under way.
  [[nodiscard]] bool are_over() const;
  // What has failed by itself, or has not moved for too long; ok where nothing has.
  [[nodiscard]] Status failed_transfer(Time now) const;
  // Whether a collective with that rank is on its way over the transport.
  [[nodiscard]] bool use_transport_with(int rank) const;
  // Whether the world ends in good order and nothing that is open or under way here needs that
  // rank, which may have left, too.
  [[nodiscard]] bool may_do_without(int rank) const;
  // A rank is lost: ends the sets of which it is a member. Its transfers must have been failed.
  void lose(int rank, const Status& reason);
  // Fails everything that is open. The transport must have been aborted.
  void fail_all(const Status& reason);
  // The same once the epoch is broken: nothing goes on or is received any more.
  void break_off(const Status& reason);
  [[nodiscard]] bool are_broken() const { return are_broken_; }
  // That a rank has left the world in good order, the first one if several have, with its number;
  // ok while none has. Any thread.
  [[nodiscard]] Status departure() const;
  // Whether there is such a reason.
  [[nodiscard]] bool is_departing() const { return is_departing_; }
  // The operations that were open when they failed, e.g. "allreduce of 'x'"; of each set the first
  // of many. Any thread, once progress has ended.
  [[nodiscard]] std::vector<std::string> interrupted() const;

 private:
  void refuse_elsewhere(int set_id, const std::string& name, int other_set);
  void forget(int id);
  void note_departure(const Status& how);

  const ProcessSets& process_sets_;
  PointToPoint& messages_;
  DeviceBackend& devices_;
  const EpochServices& services_;
  std::map<int, std::unique_ptr<SetCoordinator>> sets_;
  std::set<std::pair<int, std::string>> refused_elsewhere_;
  bool is_leaving_ = false;
  bool are_broken_ = false;
  bool is_departing_ = false;
  mutable std::mutex departure_mutex_;
  Status departure_;
};

}  // namespace rueda
