// The runtime behind the public functions.
#pragma once

#include <memory>

#include "coordinator/runtime.h"
#include "rueda/rueda.h"

namespace rueda {

// The runtime of this process. Throws NotInitializedError if there is none; the message says so if
// the process was forked from one that has it.
[[nodiscard]] std::shared_ptr<Runtime> current_runtime();

// The runtime to which a process set belongs, which may be that of another world than the process's
// own (open_world()), and the set's number there. Throws like current_runtime(), and ShutdownError
// if the world has been closed.
struct SetRuntime {
  std::shared_ptr<Runtime> runtime;
  int set_id;
};
[[nodiscard]] SetRuntime runtime_of(ProcessSet set);

// NotInitializedError: this process was forked from one that uses Rueda.
[[noreturn]] void throw_forked();

}  // namespace rueda
