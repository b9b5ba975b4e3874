// How the process sets of a world begin and end on this rank.
//
// A set begins when all ranks have agreed on it in the world's stream of responses, or when its
// members have formed it among themselves. Other ranks may know of it earlier: what they send
// before it is open here is kept (EarlyMessages). It ends in its own stream of responses; then
// OpenSets drops it.
//
// Used only by the owner of the progress lock.
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
  // What sets are opened with; references to all of it.
  struct Means {
    const World& world;
    const WorldAlgorithms& algorithms;
    Backend& backend;
    DeviceBackend& devices;
    ActiveMessages& control;
    PointToPoint& messages;  // also belong to sets
    ProcessSets& process_sets;
  };

  // Keeps references to all arguments. `sets`: the open sets.
  SetChanges(const Means& means, OpenSets& sets, const EpochServices& services)
      : means_(means), sets_(sets), services_(services) {}
  SetChanges(const SetChanges&) = delete;
  SetChanges& operator=(const SetChanges&) = delete;

  // Opens the existing sets: the world, and those inherited from an earlier world.
  [[nodiscard]] Status open();
  // Commands of the application: form a set that only its members know; leave such a set, which
  // ends it for all members.
  void form(const Command& command);
  void destroy(int set_id);
  // Gives the answers that were delayed while another world was being formed to replace this one:
  // ok if this one continues, or why not.
  void answer_late(const Status& status);
  // A message of the control plane within a set, open or not; false if there can be no such set, it
  // is gone, or either rank is not a member of it.
  bool receive(int peer, std::span<const std::byte> payload);

 private:
  using Members = std::shared_ptr<const ProcessSetMembers>;
  using Room = std::shared_ptr<ControlRoom>;

  // All ranks have agreed to add or remove a set.
  void apply(const Response& response, Submission submission);
  // `set_id`: id of an added set.
  void answer(OpenHandle handle, int set_id, bool is_late);
  // Starts a new set, whether or not this rank is a member.
  void start(const Members& members, Room room);
  void open_set(Members members, Room room = nullptr);
  // This rank cannot form the set.
  void forgo(int set_id, std::vector<int> ranks);
  // Drops what came early for it.
  void forget_early(int set_id);
  // A message of the negotiation within a set.
  void send(int peer, int set_id, std::span<const std::byte> message);
  void count_dropped(std::size_t messages);
  [[nodiscard]] SetCoordinator::Events events_of(int set_id);

  const Means means_;
  OpenSets& sets_;
  const EpochServices& services_;
  EarlyMessages early_;
  struct Change {
    OpenHandle handle;
    int set_id = 0;  // of an added set
  };
  static_assert(std::is_nothrow_move_constructible_v<Change>);  // a copy would lose the handle
  std::vector<Change> unanswered_;  // made while the sets were offered to another world
};

}  // namespace rueda
