// Numbers of process sets. Sets that exist at the same time are in different slots, few enough for
// what has little room, such as MPI's tags.
#pragma once

#include "rueda/rueda.h"

namespace rueda {

// Numbers of sets that only their members know begin here,
inline constexpr int first_formed = first_formed_set;
// and end before this one.
inline constexpr int end_of_formed = first_formed + group_generations * process_set_limit;

// The slot of a set among those of its kind: known to all ranks, or only to their members.
[[nodiscard]] constexpr int slot_of(int set_id) {
  return (set_id < first_formed ? set_id : set_id - first_formed) % process_set_limit;
}

}  // namespace rueda
