// The tables of a world as one rank has them: it serves the parts that it owns, and asks the owners
// of others. Used by the owner of the progress lock only.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "coordinator/active_messages.h"
#include "coordinator/command.h"
#include "coordinator/epoch_services.h"
#include "coordinator/table_client.h"
#include "coordinator/table_owner.h"
#include "core/earlier.h"
#include "transport/control_lane.h"

namespace rueda {

class TableEndpoint {
 public:
  // All is referred to. `messages`: by which what is large comes and goes.
  TableEndpoint(PointToPoint& messages, ActiveMessages& control, const ControlLane& lane,
                const EpochServices& services);
  TableEndpoint(const TableEndpoint&) = delete;
  TableEndpoint& operator=(const TableEndpoint&) = delete;

  // Opens, uses or closes a table.
  void carry_out(Command command);

  // Messages of the control plane; false where they are malformed.
  bool receive_request(int peer, std::span<const std::byte> payload) {
    return owner_.receive(peer, payload, Clock::now());
  }
  bool receive_answer(int peer, std::span<const std::byte> payload) {
    return client_.receive(peer, payload);
  }
  // Goes on without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether this rank works on a part, or sends: it may not leave before.
  [[nodiscard]] bool in_flight() const { return owner_.in_flight(); }
  // Whether an owner's answer is expected at any moment.
  [[nodiscard]] bool expects() const { return client_.expects(); }
  [[nodiscard]] std::optional<Time> next_deadline() const {
    return earlier(owner_.next_deadline(), client_.next_deadline());
  }

  // The messages with that rank must have been failed.
  void lose(int rank, const Status& reason);
  // The messages must have been failed.
  void fail_all(const Status& reason);

 private:
  TableClient client_;
  TableOwner owner_;
};

}  // namespace rueda
