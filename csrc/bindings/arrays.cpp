#include "arrays.h"

#include <cstdint>

namespace py = pybind11;

namespace rueda::bindings {

namespace {

// As https://numpy.org/doc/stable/reference/arrays.interface.html lays it down.
struct ArrayStruct {
  int two;
  int dimensions;
  char kind;
  int item_size;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;
  void* data;
  PyObject* description;
};

constexpr int c_contiguous = 0x1;
constexpr int native_order = 0x200;
constexpr int writeable = 0x400;

std::optional<DataType> data_type(char kind, int item_size) {
  const auto sized = [&](DataType one, DataType two, DataType four,
                         DataType eight) -> std::optional<DataType> {
    switch (item_size) {
      case 1: return one;
      case 2: return two;
      case 4: return four;
      case 8: return eight;
      default: return std::nullopt;
    }
  };
  switch (kind) {
    case 'f':
      if (item_size == 2) return DataType::float16;
      if (item_size == 4) return DataType::float32;
      if (item_size == 8) return DataType::float64;
      return std::nullopt;
    case 'i': return sized(DataType::int8, DataType::int16, DataType::int32, DataType::int64);
    case 'u': return sized(DataType::uint8, DataType::uint16, DataType::uint32, DataType::uint64);
    case 'b': return DataType::boolean;
    case 'c':
      if (item_size == 8) return DataType::complex64;
      if (item_size == 16) return DataType::complex128;
      return std::nullopt;
    default: return std::nullopt;
  }
}

py::object capsule_of(py::handle array) {
  static PyObject* const name = PyUnicode_InternFromString("__array_struct__");
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(array.ptr(), name));
}

const ArrayStruct* struct_of(const py::object& capsule) {
  if (!capsule) return nullptr;
  const auto* const read =
      static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  return read != nullptr && read->two == 2 ? read : nullptr;
}

}  // namespace

std::optional<ArrayMemory> memory_of(py::handle array) {
  const py::object capsule = capsule_of(array);  // owns the structure
  const ArrayStruct* const read = struct_of(capsule);
  if (read == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = data_type(read->kind, read->item_size);
  if (!dtype || (read->flags & native_order) == 0) return std::nullopt;
  return ArrayMemory{{read->data, Shape(read->shape, read->shape + read->dimensions), *dtype},
                     (read->flags & c_contiguous) != 0,
                     (read->flags & writeable) != 0};
}

std::uintptr_t address_of(py::handle array) {
  const py::object capsule = capsule_of(array);
  const ArrayStruct* const read = struct_of(capsule);
  if (read == nullptr) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    throw py::type_error("not an array");
  }
  return reinterpret_cast<std::uintptr_t>(read->data);
}

}  // namespace rueda::bindings
