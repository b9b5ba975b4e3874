#include "coordinator/departures.h"

#include "core/earlier.h"

namespace rueda {

std::optional<Time> Departures::next_end() const {
  std::optional<Time> next;
  for (const auto& [rank, doubt] : doubts_) next = earlier(next, doubt.end);
  return next;
}

}  // namespace rueda
