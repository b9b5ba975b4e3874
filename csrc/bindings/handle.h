// The future of one operation as Python sees it, and memory whose owner is C++.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_memory(pybind11::module_& module);
void bind_handle(pybind11::module_& module);

}  // namespace rueda::bindings
