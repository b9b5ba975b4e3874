// The engine behind the public functions: the only global state of the library.
#pragma once

#include <memory>

#include "coordinator/engine.h"

namespace rueda {

// The engine of this process. Throws NotInitializedError without one, saying so where the process
// was forked from one that has it.
[[nodiscard]] std::shared_ptr<Engine> current_engine();

}  // namespace rueda
