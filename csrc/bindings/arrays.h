// Reads NumPy's array structure protocol, which needs no header of NumPy: one attribute tells where
// the elements are, in about the time of a function call.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "rueda/types.h"

namespace rueda::bindings {

struct ArrayMemory {
  TensorView view;
  bool is_contiguous = false;  // row-major
  bool is_writeable = false;
};

// What lies behind `array.__array_struct__`; nothing where it has none or its elements are of a
// type that the protocol cannot name or Rueda does not know. Leaves no Python error set.
std::optional<ArrayMemory> memory_of(pybind11::handle array);

// The address alone, whatever the elements are. Raises TypeError for what is no array.
std::uintptr_t address_of(pybind11::handle array);

}  // namespace rueda::bindings
