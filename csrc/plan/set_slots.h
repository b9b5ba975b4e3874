// Numbers of process sets, of which those that exist at a time are in slots of their own: few
// enough for what has room for few, as MPI's tags have.
#pragma once

#include "rueda/rueda.h"

namespace rueda {

// Numbers of sets that only their members know begin here.
inline constexpr int first_formed = first_formed_set;
// And end before this one.
inline constexpr int end_of_formed = first_formed + group_generations * process_set_limit;

// Of sets of one kind: those that all ranks know, or those that only their members know.
[[nodiscard]] constexpr int slot_of(int set_id) {
  return (set_id < first_formed ? set_id : set_id - first_formed) % process_set_limit;
}

}  // namespace rueda
