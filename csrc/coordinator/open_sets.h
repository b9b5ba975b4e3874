// The process sets at work that this rank is a member of: their commands, their progress, and how
// their operations end. A set that has ended is dropped once nothing of it is in progress;
// SetChanges handles how sets begin and end.
//
// Used only by the owner of the progress lock, except where marked as being for any thread.
#pragma once

#include <cstddef>
#include <functional>
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
#include "plan/inquiry.h"

namespace rueda {

class OpenSets {
 public:
  // Keeps references to all arguments. `messages`, which also belong to sets, and `devices` are
  // told when sets end; `process_sets`: the sets that exist for the application.
  OpenSets(const ProcessSets& process_sets, PointToPoint& messages, DeviceBackend& devices,
           const EpochServices& services)
      : process_sets_(process_sets), messages_(messages), devices_(devices), services_(services) {}
  OpenSets(const OpenSets&) = delete;
  OpenSets& operator=(const OpenSets&) = delete;

  // If this rank is leaving, it leaves this set, too.
  void add(std::unique_ptr<SetCoordinator> set);
  // Null if this rank has not opened the set, or has dropped it.
  [[nodiscard]] SetCoordinator* find(int id) const {
    const auto set = sets_.find(id);
    return set == sets_.end() ? nullptr : set->second.get();
  }

  // --- Commands of the application

  // Starts operations, a message or a join.
  void start(Command command, Time now);
  // For calls of the set that need no submission; null if they must be submitted.
  [[nodiscard]] RoundAtOnce* at_once(int set_id) const;
  // This rank leaves all sets, including future ones.
  void leave();

  // --- Messages from other ranks

  // Takes an awaited member's answer where its application is.
  void hear_whereabouts(int peer, WhereaboutsAnswer answer);
  // Ranks that submit one name to different sets would wait for each other forever. So a rank that
  // learns that a set waits for a name checks whether it has submitted that name to another set,
  // and makes it an error of both; likewise if it hears of the error in one of them.
  void look_elsewhere(int set_id, const std::string& awaited);
  void hear_of_refusal(int set_id, const Response& response);

  // --- Progress

  // Advances without blocking; returns whether anything happened.
  bool step(Time now);
  // Ends the sets that cannot go on because a member has left the world without opening them. The
  // sets that it did open ended for all members before its good-bye. Returns whether any did.
  bool end_without(const std::function<bool(int rank)>& has_left, Time now);
  // Steps all existing sets once, with what has arrived already.
  void step_once(Time now);
  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool uses_transport() const;
  [[nodiscard]] bool must_be_polled() const;
  // Whether messages from other members are expected at any moment.
  [[nodiscard]] bool negotiates() const;
  [[nodiscard]] std::optional<Time> next_deadline() const;

  // --- The end

  // Whether all have ended and nothing agreed on earlier is in progress.
  [[nodiscard]] bool are_over() const;
  // A transfer that has failed on its own or has not moved for too long; ok if there is none.
  [[nodiscard]] Status failed_transfer(Time now) const;
  // Whether a collective with that rank is in flight over the transport.
  [[nodiscard]] bool use_transport_with(int rank) const;
  // Whether the world ends cleanly and nothing in progress here needs that rank, which may have
  // left, too.
  [[nodiscard]] bool may_do_without(int rank) const;
  // A rank is lost: ends the sets of which it is a member. Its transfers must have been failed.
  void lose(int rank, const Status& reason);
  // The epoch has ended: fails all open operations, and nothing advances or is received any more.
  // The transport must have been aborted, unless nothing was in flight.
  void break_off(const Status& reason);
  [[nodiscard]] bool are_broken() const { return are_broken_; }
  // That a rank has left the world cleanly, with its number (the first rank, if several have); ok
  // while none has. Any thread.
  [[nodiscard]] Status departure() const;
  // Whether departure() is not ok.
  [[nodiscard]] bool is_departing() const { return is_departing_; }
  // The operations that were open when they failed, e.g. "allreduce of 'x'", limited to the first
  // of each set. Any thread, once progress has ended.
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
  std::set<std::pair<int, int>> departed_;  // sets and ranks, see end_without()
  bool is_leaving_ = false;
  bool are_broken_ = false;
  bool is_departing_ = false;
  mutable std::mutex departure_mutex_;
  Status departure_;
};

}  // namespace rueda
