// Sums of the rows of sparse tensors, and samples of their keys.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_row_sums(pybind11::module_& module);

}  // namespace rueda::bindings
