// Every rank hands the same number of descriptors to every other, through rank 0.
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
  std::string address;  // of the listener
  std::string world;    // a random word that only the ranks know
};

// Takes the descriptors of one rank; what it does not move away is closed when it returns.
using TakeDescriptors = std::function<Status(int rank, std::span<UniqueFd> fds)>;

// Collective. Calls `take` once for each of the `size` ranks, this one included, with as many
// descriptors as `own` has. Ends with an error where a rank does not take part or fails.
Status exchange_descriptors(const MeetingPoint& place, int rank, int size, std::span<const int> own,
                            const TakeDescriptors& take, Time deadline);

}  // namespace rueda
