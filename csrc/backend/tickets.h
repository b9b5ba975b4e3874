// Lists of transfers that an operation has in flight.
#pragma once

#include <initializer_list>
#include <set>
#include <vector>

#include "core/status.h"
#include "transport/transport.h"

namespace rueda {

// Whether all have completed successfully. Stores the first error found in `failure`.
[[nodiscard]] inline bool all_done(const std::vector<Ticket>& tickets, Status& failure) {
  for (const Ticket& ticket : tickets) {
    if (!ticket->done) return false;
    if (ticket->status.ok()) continue;
    failure = ticket->status;
    return false;
  }
  return true;
}

// Peers of the transfers that are not done, sorted.
[[nodiscard]] inline std::vector<int> awaited_peers(
    std::initializer_list<const std::vector<Ticket>*> lists) {
  std::set<int> peers;
  for (const auto* const tickets : lists) {
    for (const Ticket& ticket : *tickets) {
      if (!ticket->done) peers.insert(ticket->peer);
    }
  }
  return {peers.begin(), peers.end()};
}

}  // namespace rueda
