// The future of one operation as seen from Python, and memory owned by C++.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "rueda/rueda.h"

namespace rueda::bindings {

// Handle of a group, which is one operation in Python: one object per tensor would take longer than
// everything else. As a Handle it is the first one.
struct GroupHandle : Handle {
  explicit GroupHandle(std::vector<Handle> all) : handles(std::move(all)) {
    if (!handles.empty()) Handle::operator=(handles.front());
  }
  std::vector<Handle> handles;
};

void bind_memory(pybind11::module_& module);
void bind_handle(pybind11::module_& module);

// Sleeps without the GIL, which the caller holds, until the operation is done (true) or `timeout`
// seconds have passed (false). Raises what a signal handler raises, especially KeyboardInterrupt;
// the operation then continues.
bool wait(const Handle& handle, std::optional<double> timeout);

// When to check for signals next, or the deadline if that is earlier.
[[nodiscard]] Time end_of_sleep(std::optional<Time> deadline);
// Waits without checking for signals: until the operation is done, a signal has arrived, or
// end_of_sleep(). The caller does not hold the GIL.
void sleep_once(const Handle& handle, std::optional<Time> deadline = std::nullopt);

}  // namespace rueda::bindings
