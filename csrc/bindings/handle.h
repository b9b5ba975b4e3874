// The future of one operation as Python sees it, and memory whose owner is C++.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "rueda/rueda.h"

namespace rueda::bindings {

// Of a group, which to Python is one operation: as many objects as tensors would take longer than
// all else. Itself it is the first of them.
struct GroupHandle : Handle {
  explicit GroupHandle(std::vector<Handle> all) : handles(std::move(all)) {
    if (!handles.empty()) Handle::operator=(handles.front());
  }
  std::vector<Handle> handles;
};

void bind_memory(pybind11::module_& module);
void bind_handle(pybind11::module_& module);

// Sleeps without the GIL, which the caller holds, until the operation is done (true) or `timeout`
// seconds have passed (false). Raises what a signal handler raises, KeyboardInterrupt above all;
// the operation goes on then.
bool wait(const Handle& handle, std::optional<double> timeout);

// When it is time to look for a signal, or the deadline.
[[nodiscard]] Time end_of_sleep(std::optional<Time> deadline);
// Waits without looking for signals: until the operation is done, a signal has come, or the end of
// a sleep that begins now. The caller does not hold the GIL.
void sleep_once(const Handle& handle, std::optional<Time> deadline = std::nullopt);

}  // namespace rueda::bindings
