// How the process sets of a world come and go on this rank.
//
// A set begins where all ranks have agreed on it in the world's stream of responses, or where its
// members have formed it among themselves. Other ranks may know of it earlier: what they send until
// it is open here is kept (EarlyMessages). It ends in its own stream of responses; then OpenSets
// lets go of it.
//
// Used by the owner of the progress lock only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "coordinator/active_messages.h"
#include "coordinator/command.h"
#include "coordinator/early_messages.h"
#include "coordinator/epoch_services.h"
#include "coordinator/open_handle.h"
#include "coordinator/open_sets.h"
#include "coordinator/point_to_point.h"
#include "coordinator/process_sets.h"
#include "coordinator/set_coordinator.h"
#include "coordinator/world_algorithms.h"
#include "membership/world.h"

namespace rueda {

class SetChanges {
 public:
  // What sets are opened with. All is referred to.
  struct Means {
    const World& world;
    const WorldAlgorithms& algorithms;
    Backend& backend;
    DeviceBackend& devices;
    ActiveMessages& control;
    PointToPoint& messages;  // which belong to sets, too
    ProcessSets& process_sets;
  };

  // All is referred to. `sets`: where those are that are open.
  SetChanges(const Means& means, OpenSets& sets, const EpochServices& services)
      : means_(means), sets_(sets), services_(services) {}
  SetChanges(const SetChanges&) = delete;
  SetChanges& operator=(const SetChanges&) = delete;

  // Opens those that there are: the world, and what it has from a world before it.
  [[nodiscard]] Status open();
  // What the application asks for: a set that only its members know, and that this rank leaves one,
  // with which it ends for all.
  void form(const Command& command);
  void dissolve(int set_id);
  // What was answered late because another world was being formed in the place of this one: told
  // now, that this one goes on, or why not.
  void answer_late(const Status& status);
  // A message of the control plane within a set, open or not; false where there can be no such set,
  // it is gone, or either rank is no member of it.
  bool receive(int peer, std::span<const std::byte> payload);

 private:
  using Members = std::shared_ptr<const ProcessSetMembers>;
  using Room = std::shared_ptr<ControlRoom>;

  // All ranks have agreed to add or to remove a set.
  void apply(const Response& response, Submission submission);
  // `set_id`: of a set that was added.
  void answer(OpenHandle handle, int set_id, bool is_late);
  // A new set, of which this rank is a member or not.
  void start(const Members& members, Room room);
  void open_set(Members members, Room room = nullptr);
  // Nothing more will be done with what came early for it.
  void forget_early(int set_id);
  void count_dropped(std::size_t messages);
  [[nodiscard]] SetCoordinator::Events events_of(int set_id);

  const Means means_;
  OpenSets& sets_;
  const EpochServices& services_;
  EarlyMessages early_;
  struct Change {
    OpenHandle handle;
    int set_id = 0;  // of a set that was added
  };
  static_assert(std::is_nothrow_move_constructible_v<Change>);  // a copy would lose the handle
  std::vector<Change> unanswered_;  // made while the sets were offered to another world
};

}  // namespace rueda
