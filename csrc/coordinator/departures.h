// Which ranks have left the world, as far as this rank knows.
//
// A rank says good-bye to those that it is connected to. If another one only connects when it first
// has a message for it, it is refused, whether that rank has left cleanly or died. Which of the two
// it is becomes known soon: the rank's neighbours in the world's tree report its death, or this
// rank learns that ranks are leaving. Until then the departure is in doubt, and nothing is
// concluded.
//
// Used only by the owner of the progress lock.
#pragma once

#include <map>
#include <optional>

#include "core/clock.h"
#include "core/status.h"
#include "transport/control_lane.h"

namespace rueda {

class Departures {
 public:
  struct Doubt {
    Status cause;  // how the connection failed
    Time end;      // when the rank counts as lost
  };

  // Keeps a reference.
  explicit Departures(const ControlLane& lane) : lane_(lane) {}
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  // Whether nothing more can come from `rank`: it is lost or has left.
  [[nodiscard]] bool has_left(int rank) const {
    return lane_.has_left(rank) && !doubts_.contains(rank);
  }

  void doubt(int rank, Doubt doubt) { doubts_.insert_or_assign(rank, std::move(doubt)); }
  // It is known now how that rank ended.
  void settle(int rank) { doubts_.erase(rank); }
  // By rank.
  [[nodiscard]] const std::map<int, Doubt>& doubts() const { return doubts_; }
  [[nodiscard]] std::optional<Time> next_end() const;

 private:
  const ControlLane& lane_;
  std::map<int, Doubt> doubts_;
};

}  // namespace rueda
