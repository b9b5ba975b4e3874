// Which ranks an epoch has lost, and what fails with them: what a rank took part in, or all that
// there is. Ranks notice the loss of their neighbours in the world's tree themselves (a connection
// ends, or a neighbour is silent for too long) and learn of others from these.
//
// What fails is first stopped as a whole, so that the other ranks of this host are not held up, and
// only then waited for: no two ranks wait for each other.
//
// Used by the owner of the progress lock only, but for what is said to be for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "backend/device_backend.h"
#include "coordinator/active_messages.h"
#include "coordinator/epoch_services.h"
#include "coordinator/open_sets.h"
#include "coordinator/point_to_point.h"
#include "coordinator/set_changes.h"
#include "coordinator/table_endpoint.h"
#include "membership/world.h"
#include "plan/heartbeat.h"

namespace rueda {

// What becomes of the epoch when a rank is lost: it ends for all ranks, or goes on for the process
// sets and messages of which that rank is no part, unless a collective with that rank is on its way
// over the transport.
enum class LossPolicy : std::uint8_t { end_world, keep_others };

class Losses {
 public:
  // What ranks take part in. All is referred to.
  struct Concerned {
    ActiveMessages& control;
    OpenSets& sets;
    SetChanges& changes;
    PointToPoint& messages;
    TableEndpoint& tables;
    DeviceBackend& devices;
  };

  // Handles what ranks tell of failures from now on, and their questions whether this one is there.
  Losses(const World& world, const Concerned& concerned, const EpochServices& services,
         LossPolicy on_loss);
  Losses(const Losses&) = delete;
  Losses& operator=(const Losses&) = delete;

  // In the world's tree.
  [[nodiscard]] const std::vector<int>& neighbours() const { return neighbours_; }

  [[nodiscard]] bool has_failed() const { return !failure_.ok(); }
  // What broke the epoch; ok where nothing did. Any thread, once progress has ended.
  [[nodiscard]] const Status& failure() const { return failure_; }
  // Whether every set has ended and nothing that was agreed on before is under way: nobody is
  // needed any more, and nobody's end is a loss.
  [[nodiscard]] bool are_harmless() const;

  // Whether silence is looked for. Without recovery a rank that is silent may come back: what waits
  // for it has time-outs of its own.
  [[nodiscard]] bool minds_silence() const { return minds_silence_; }

  // A connection has ended without a good-bye, or none can be opened.
  void on_peer_lost(int peer, const Status& cause);
  // Asks neighbours that have said nothing for long whether they are there, while this rank waits
  // for anything.
  void look_for_silence(Time now, bool is_waiting);
  // When to look next; nothing while it does not wait.
  [[nodiscard]] std::optional<Time> next_look() const { return heartbeat_.next_look(); }

  // The epoch is broken: fails everything, here and at the other ranks.
  void fail(const Status& reason);

 private:
  [[nodiscard]] bool may_have_left(int peer) const;
  void lose(int rank, const Status& reason);
  void handle_messages();
  bool receive_failure(int peer, std::span<const std::byte> payload);
  bool receive_loss(std::span<const std::byte> payload);
  bool is_excused(int peer, Time now);
  void fence(const Status& reason);
  void tell_neighbours(ControlMessage kind, const Status& reason);

  const World& world_;
  const Concerned concerned_;
  const EpochServices& services_;
  const LossPolicy on_loss_;
  const bool minds_silence_;
  const std::vector<int> neighbours_;
  Heartbeat heartbeat_;  // of the neighbours
  std::set<int> lost_;   // ranks without which the epoch goes on
  Status failure_;       // once the epoch is broken
};

}  // namespace rueda
