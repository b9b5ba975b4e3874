// The runtime behind the public functions.
#pragma once

#include <memory>

#include "coordinator/runtime.h"

namespace rueda {

// The runtime of this process. Throws NotInitializedError without one, saying so where the process
// was forked from one that has it.
[[nodiscard]] std::shared_ptr<Runtime> current_runtime();

// NotInitializedError: this process was forked from one that uses Rueda.
[[noreturn]] void throw_forked();

}  // namespace rueda
