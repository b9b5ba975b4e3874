// Tables of parameters that are divided over ranks.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

void bind_tables(pybind11::module_& module);

}  // namespace rueda::bindings
