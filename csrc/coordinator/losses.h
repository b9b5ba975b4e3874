// Tracks which ranks an epoch has lost, and fails what each took part in, or everything. Ranks
// detect the loss of their neighbours in the world's tree (a connection ends, or a neighbour is
// silent for too long) and learn of other losses from these.
//
// Everything that fails is stopped first, so that the other ranks of this host are not held up, and
// only then waited for: no two ranks wait for each other.
//
// Used only by the owner of the progress lock, except where marked as being for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "backend/device_backend.h"
#include "coordinator/active_messages.h"
#include "coordinator/departures.h"
#include "coordinator/epoch_services.h"
#include "coordinator/open_sets.h"
#include "coordinator/point_to_point.h"
#include "coordinator/set_changes.h"
#include "coordinator/table_endpoint.h"
#include "core/earlier.h"
#include "membership/world.h"
#include "plan/heartbeat.h"

namespace rueda {

// What happens to the epoch when a rank is lost: it ends for all ranks, or it continues for process
// sets and messages that do not involve that rank, unless a collective with that rank is in flight
// over the transport.
enum class LossPolicy : std::uint8_t { end_world, keep_others };

class Losses {
 public:
  // What ranks take part in; references to all of it.
  struct Concerned {
    ActiveMessages& control;
    Departures& departures;
    OpenSets& sets;
    SetChanges& changes;
    PointToPoint& messages;
    TableEndpoint& tables;
    DeviceBackend& devices;
  };

  // From now on handles reports of failures, and questions whether this rank is alive.
  Losses(const World& world, const Concerned& concerned, const EpochServices& services,
         LossPolicy on_loss);
  Losses(const Losses&) = delete;
  Losses& operator=(const Losses&) = delete;

  // In the world's tree.
  [[nodiscard]] const std::vector<int>& neighbours() const { return neighbours_; }

  [[nodiscard]] bool has_failed() const { return !failure_.ok(); }
  // What broke the epoch; ok if nothing did. Any thread, once progress has ended.
  [[nodiscard]] const Status& failure() const { return failure_; }
  // Whether every set has ended and nothing agreed on earlier is in progress: no rank is needed any
  // more, so none that ends is a loss.
  [[nodiscard]] bool are_harmless() const;

  // Whether silence is checked for. Without recovery, a silent rank may come back, and whatever
  // waits for it has its own timeouts.
  [[nodiscard]] bool minds_silence() const { return minds_silence_; }

  // A connection has ended without a good-bye, or cannot be opened.
  void on_peer_lost(int peer, const Status& cause);
  // Whether that rank has left the world. If not, its departure will be noticed from now on.
  [[nodiscard]] bool has_left(int rank);
  // While this rank waits for anything: asks neighbours that have been silent for long whether they
  // are alive.
  void look_for_silence(Time now, bool is_waiting);
  // Whether it is known by now how ranks ended to which no connection could be opened.
  void look_at_doubts(Time now);
  // When to check either next.
  [[nodiscard]] std::optional<Time> next_look() const {
    return earlier(heartbeat_.next_look(), concerned_.departures.next_end());
  }

  // The epoch is broken: fails everything, here and on the other ranks.
  void fail(const Status& reason);

 private:
  [[nodiscard]] bool may_have_left(int peer) const;
  [[nodiscard]] bool will_be_told_of(int peer) const;
  void conclude_loss(int peer, const Status& cause);
  void lose(int rank, const Status& reason);
  void handle_messages();
  bool receive_failure(int peer, std::span<const std::byte> payload);
  bool receive_loss(std::span<const std::byte> payload);
  bool is_excused(int peer, Time now);
  void lose_crashed(int peer);
  void fence(const Status& reason);
  void tell_neighbours(ControlMessage kind, const Status& reason);

  const World& world_;
  const Concerned concerned_;
  const EpochServices& services_;
  const LossPolicy on_loss_;
  const bool minds_silence_;
  const std::vector<int> neighbours_;
  Heartbeat heartbeat_;  // of the neighbours
  std::set<int> asked_;  // by has_left()
  std::set<int> lost_;   // ranks without which the epoch goes on
  Status failure_;       // once the epoch is broken
};

}  // namespace rueda
