// The runtime behind the public functions: the only global state of the library.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/runtime.h"
#include "rueda/rueda.h"

namespace rueda {

// The runtime of this process. Throws NotInitializedError without one, saying so where the process
// was forked from one that has it.
[[nodiscard]] std::shared_ptr<Runtime> current_runtime();

// NotInitializedError: this process was forked from one that uses Rueda.
[[noreturn]] void throw_forked();

// add_process_set() and remove_process_set() begun: for who waits in a way of his own.
[[nodiscard]] Handle begin_adding_process_set(std::vector<int> ranks);
// Waits until it has been added.
[[nodiscard]] ProcessSet added_process_set(const Handle& handle);
[[nodiscard]] Handle begin_removing_process_set(ProcessSet set);

}  // namespace rueda
