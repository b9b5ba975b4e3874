// Raises the classes of rueda.errors for what the C++ API throws.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "rueda/error.h"

namespace rueda::bindings {

// Makes pybind11 translate rueda::Error into the class of python/rueda/errors.py with the same
// code.
void register_errors();

// The same in a function of Python's that pybind11 does not call: within a catch clause, sets the
// error of Python's that belongs to the exception.
void set_python_error();

// The reason that Python knows by this name.
[[nodiscard]] ErrorReason error_reason(const std::string& name);

}  // namespace rueda::bindings
