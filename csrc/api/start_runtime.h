// How each of a process's worlds starts to work once it has been formed.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/runtime.h"
#include "transport/bootstrap.h"

namespace rueda {

// Returns once all ranks have connected: one that leaves at once must not be gone before. Throws on
// every rank where one of them cannot. `on_failure`, `inherited`: see Runtime::start().
[[nodiscard]] std::shared_ptr<Runtime> start_runtime(
    World world, Bootstrap& bootstrap, const Options& options,
    std::function<void(const Status&)> on_failure = {}, Runtime::Inheritance inherited = {});

}  // namespace rueda
