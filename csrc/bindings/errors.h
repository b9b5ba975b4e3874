// Raises the classes of rueda.errors for what the C++ API throws.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

// Makes pybind11 translate rueda::Error into the class of python/rueda/errors.py with the same
// code.
void register_errors();

}  // namespace rueda::bindings
