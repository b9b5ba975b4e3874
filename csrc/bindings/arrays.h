// Finds the elements of NumPy arrays without a NumPy header: by the array structure protocol, one
// attribute, in about the time of a function call. Ordinary arrays are read like NumPy's own C API
// does, at almost no cost, once both ways have been seen to agree.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <span>

#include "rueda/types.h"

namespace rueda::bindings {

struct ArrayMemory {
  void* data = nullptr;
  std::span<const std::int64_t> shape;
  DataType dtype = DataType::float32;
  bool is_contiguous = false;  // row-major
  bool is_writeable = false;
  pybind11::object owner = {};  // owner of the shape, if that is not the array
};

// Reads `array.__array_struct__`; nothing if it has none, or if its elements have a type that the
// protocol cannot express or Rueda does not support. Leaves no Python error set.
std::optional<ArrayMemory> memory_of(pybind11::handle array);

// Whether it is exactly a numpy.ndarray, not an instance of a derived class.
bool is_plain_array(pybind11::handle array);

// The address alone, whatever the element type. Raises TypeError if it is not an array.
std::uintptr_t address_of(pybind11::handle array);

}  // namespace rueda::bindings
