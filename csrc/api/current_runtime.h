// The runtime behind the public functions.
#pragma once

#include <memory>

#include "coordinator/runtime.h"
#include "rueda/rueda.h"

namespace rueda {

// The runtime of this process. Throws NotInitializedError without one, saying so where the process
// was forked from one that has it.
[[nodiscard]] std::shared_ptr<Runtime> current_runtime();

// The runtime that a process set is of, which may be that of another world than the process's own
// (open_world()), and the set's number there. Throws as current_runtime(), and ShutdownError where
// the world has been closed.
struct SetRuntime {
  std::shared_ptr<Runtime> runtime;
  int set_id;
};
[[nodiscard]] SetRuntime runtime_of(ProcessSet set);

// NotInitializedError: this process was forked from one that uses Rueda.
[[noreturn]] void throw_forked();

}  // namespace rueda
