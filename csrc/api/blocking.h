// Collectives for a caller that waits at once: it does the work itself, and no other thread wakes.
#pragma once

#include <optional>

#include "core/clock.h"
#include "rueda/rueda.h"

namespace rueda {

// As allreduce() and barrier(). Return when the operation is done, when the deadline has passed or
// when a signal handler has run; in the last two cases it goes on, and the handle is waited for as
// any other.
[[nodiscard]] Handle allreduce_blocking(const TensorView& input, void* output,
                                        const AllreduceOptions& options,
                                        std::optional<Time> deadline);
[[nodiscard]] Handle barrier_blocking(const CallOptions& options, std::optional<Time> deadline);

}  // namespace rueda
