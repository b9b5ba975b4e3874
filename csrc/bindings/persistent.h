// Persistent allreduces.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_persistent(pybind11::module_& module);

}  // namespace rueda::bindings
