// The future of one operation as Python sees it, and memory whose owner is C++.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "core/clock.h"
#include "rueda/rueda.h"

namespace rueda::bindings {

void bind_memory(pybind11::module_& module);
void bind_handle(pybind11::module_& module);

// Waits without looking for signals: until the operation is done, a signal has come, the deadline,
// or so long that it is time to look for a signal. The caller does not hold the GIL.
void sleep_once(const Handle& handle, std::optional<Time> deadline = std::nullopt);

}  // namespace rueda::bindings
