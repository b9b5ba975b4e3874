#include "arrays.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace py = pybind11;

namespace rueda::bindings {

namespace {

// Defined in https://numpy.org/doc/stable/reference/arrays.interface.html
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

std::optional<ArrayMemory> read_by_protocol(py::handle array) {
  py::object capsule = capsule_of(array);  // owns the structure
  const ArrayStruct* const read = struct_of(capsule);
  if (read == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = data_type(read->kind, read->item_size);
  if (!dtype || (read->flags & native_order) == 0) return std::nullopt;
  return ArrayMemory{read->data,
                     {read->shape, static_cast<std::size_t>(read->dimensions)},
                     *dtype,
                     (read->flags & c_contiguous) != 0,
                     (read->flags & writeable) != 0,
                     std::move(capsule)};
}

// The beginning of NumPy's array object, which its C API exposes to extensions
// (PyArrayObject_fields in ndarraytypes.h), and so has not changed since NumPy 1.7.
struct ArrayObject {
  PyObject_HEAD void* data;
  int dimensions;
  Py_intptr_t* shape;
  Py_intptr_t* strides;
  PyObject* base;
  PyObject* description;
  int flags;
};

// Reads arrays as ArrayObject: exactly NumPy's arrays, of its own element types.
class Layout {
 public:
  Layout() {
    try {
      const auto numpy = py::module_::import("numpy");
      // Never released: arrays may be passed until the process ends.
      type_ = py::object(numpy.attr("ndarray")).release().ptr();
      for (std::size_t i = 0; i < data_types.size(); ++i) {
        if (data_types[i].id == DataType::bfloat16) continue;
        descriptions_[i] = numpy.attr("dtype")(std::string(data_types[i].name)).release().ptr();
      }
      is_right_ = agrees(numpy);
    } catch (py::error_already_set&) {
      is_right_ = false;
    }
  }

  [[nodiscard]] bool has(py::handle array) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == type_;
  }

  // Nothing if the protocol must be used.
  [[nodiscard]] std::optional<ArrayMemory> read(py::handle array) const {
    return is_right_ && has(array) ? read_fields(array) : std::nullopt;
  }

 private:
  [[nodiscard]] std::optional<ArrayMemory> read_fields(py::handle array) const {
    const auto& fields = *reinterpret_cast<const ArrayObject*>(array.ptr());
    const auto found = std::find(descriptions_.begin(), descriptions_.end(), fields.description);
    if (found == descriptions_.end()) return std::nullopt;
    return ArrayMemory{fields.data,
                       {fields.shape, static_cast<std::size_t>(fields.dimensions)},
                       data_types[static_cast<std::size_t>(found - descriptions_.begin())].id,
                       (fields.flags & c_contiguous) != 0,
                       (fields.flags & writeable) != 0};
  }

  // Compares both ways on arrays in which no two fields have the same value.
  [[nodiscard]] bool agrees(const py::module_& numpy) const {
    const py::object rows = numpy.attr("zeros")(py::make_tuple(3, 5), "float32");
    const py::object read_only = numpy.attr("zeros")(py::make_tuple(2, 7, 4), "int64");
    read_only.attr("setflags")(py::arg("write") = false);
    const py::object columns = rows.attr("T");
    for (const py::object& array : {rows, columns, read_only}) {
      const auto fields = has(array) ? read_fields(array) : std::nullopt;
      const auto told = read_by_protocol(array);
      if (!fields || !told || fields->data != told->data || fields->dtype != told->dtype ||
          !std::equal(fields->shape.begin(), fields->shape.end(), told->shape.begin(),
                      told->shape.end()) ||
          fields->is_contiguous != told->is_contiguous ||
          fields->is_writeable != told->is_writeable) {
        return false;
      }
    }
    return true;
  }

  PyObject* type_ = nullptr;
  std::array<PyObject*, data_types.size()> descriptions_{};  // by element type
  bool is_right_ = false;
};

const Layout& layout() {
  static const Layout known;
  return known;
}

}  // namespace

bool is_plain_array(py::handle array) {
  return layout().has(array);
}

std::optional<ArrayMemory> memory_of(py::handle array) {
  auto read = layout().read(array);
  return read ? std::move(read) : read_by_protocol(array);
}

std::uintptr_t address_of(py::handle array) {
  if (const auto read = layout().read(array)) return reinterpret_cast<std::uintptr_t>(read->data);
  const py::object capsule = capsule_of(array);
  const ArrayStruct* const read = struct_of(capsule);
  if (read == nullptr) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    throw py::type_error("not an array");
  }
  return reinterpret_cast<std::uintptr_t>(read->data);
}

}  // namespace rueda::bindings
