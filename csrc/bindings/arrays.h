// Reads where the elements of NumPy's arrays are, without a header of NumPy: by the array structure
// protocol, one attribute, in about the time of a function call. Arrays of the usual kind are read
// as NumPy's own C API does, in no time, once it has been seen that both say the same.
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
  pybind11::object owner = {};  // of the shape, where that is not the array
};

// What lies behind `array.__array_struct__`; nothing where it has none or its elements are of a
// type that the protocol cannot name or Rueda does not know. Leaves no Python error set.
std::optional<ArrayMemory> memory_of(pybind11::handle array);

// Whether it is a numpy.ndarray, not of a class derived from that.
bool is_plain_array(pybind11::handle array);

// The address alone, whatever the elements are. Raises TypeError for what is no array.
std::uintptr_t address_of(pybind11::handle array);

}  // namespace rueda::bindings
