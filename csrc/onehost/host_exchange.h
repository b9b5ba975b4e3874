// Passes descriptors from every rank to every other, through rank 0.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

struct MeetingPoint {
  int listener = -1;    // on rank 0
  std::string address;  // its address
  std::string world;    // a random word that only the ranks know
};

// Receives one rank's descriptors; those it does not move from are closed when it returns.
using TakeDescriptors = std::function<Status(int rank, std::span<UniqueFd> fds)>;

// Collective. Calls `take` once for each of the `size` ranks, including this one, with as many
// descriptors as `own` has. Fails if a rank does not take part or fails.
Status exchange_descriptors(const MeetingPoint& place, int rank, int size, std::span<const int> own,
                            const TakeDescriptors& take, Time deadline);

}  // namespace rueda
