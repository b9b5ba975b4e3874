// Runs a block of calls and takes the times.
#pragma once

#include "contender.h"
#include "message.h"
#include "shared_area.h"
#include "work.h"

namespace rueda_bench {

// The answer to the driver: as payload, nanoseconds of the monotonic clock at which this rank
// entered each measured call, then those at which it returned; "wrong", the number of wrong
// elements in the block's first and last call.
[[nodiscard]] Message run_block(const Contender& contender, Call& call, const Work& work,
                                FlagBarrier& barrier);

}  // namespace rueda_bench
