// Turns errors of the C++ API into the classes of rueda.errors.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "rueda/error.h"

namespace rueda::bindings {

// Makes pybind11 translate rueda::Error into the class of python/rueda/errors.py with the same
// code.
void register_errors();

// The same for a function that Python calls without pybind11: within a catch clause, sets the
// Python error that corresponds to the exception.
void set_python_error();

// The reason that has this name in Python.
[[nodiscard]] ErrorReason error_reason(const std::string& name);

}  // namespace rueda::bindings
