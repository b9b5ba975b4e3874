// The tables of a world on one rank: serves the shards that the rank owns, and sends requests to
// the owners of others. Used only by the owner of the progress lock.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "coordinator/active_messages.h"
#include "coordinator/command.h"
#include "coordinator/departures.h"
#include "coordinator/epoch_services.h"
#include "coordinator/table_client.h"
#include "coordinator/table_owner.h"
#include "core/earlier.h"

namespace rueda {

class TableEndpoint {
 public:
  // Keeps references to all arguments. `messages`: carries large payloads.
  TableEndpoint(PointToPoint& messages, ActiveMessages& control, const Departures& departures,
                const EpochServices& services);
  TableEndpoint(const TableEndpoint&) = delete;
  TableEndpoint& operator=(const TableEndpoint&) = delete;

  // Opens, uses or closes a table.
  void carry_out(Command command);

  // Messages of the control plane; false if malformed.
  bool receive_request(int peer, std::span<const std::byte> payload) {
    return owner_.receive(peer, payload, Clock::now());
  }
  bool receive_answer(int peer, std::span<const std::byte> payload) {
    return client_.receive(peer, payload);
  }
  // Advances without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether this rank is working on a shard or sending: it may not leave before.
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
