// How each of a process's worlds starts once it has been formed.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/runtime.h"
#include "transport/bootstrap.h"

namespace rueda {

// Returns once all ranks have connected, so that a rank that leaves at once cannot be gone before.
// Throws on every rank if one of them fails. `on_failure`, `inherited`: see Runtime::start().
[[nodiscard]] std::shared_ptr<Runtime> start_runtime(
    World world, Bootstrap& bootstrap, const Options& options,
    std::function<void(const Status&)> on_failure = {}, Runtime::Inheritance inherited = {});

}  // namespace rueda
