// Allreduces that submit and wait in one call, for minimal latency.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_blocking(pybind11::module_& module);

}  // namespace rueda::bindings
