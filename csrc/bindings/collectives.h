// Submission of collectives: pointers as integers, shapes as lists, dtypes and operations by
// number.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_collectives(pybind11::module_& module);

}  // namespace rueda::bindings
