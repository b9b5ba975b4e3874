#include "row_sums.h"

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "api/bindings.h"
#include "gil.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

// Addresses of the keys and of the values, and the number of rows.
using Part = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t>;

std::unique_ptr<RowSums> sums_of(const std::vector<Part>& parts, std::size_t key_bytes,
                                 std::size_t width, int dtype) {
  std::vector<KeyedRows> rows;
  rows.reserve(parts.size());
  for (const auto& [keys, values, count] : parts) {
    rows.push_back(
        {reinterpret_cast<const void*>(keys), reinterpret_cast<const std::byte*>(values), count});
  }
  const GilReleased released;
  return std::make_unique<RowSums>(rows, key_bytes, width, static_cast<DataType>(dtype));
}

void write(const RowSums& sums, std::uintptr_t keys, std::uintptr_t values, int divisor,
           double factor) {
  const GilReleased released;
  sums.write(reinterpret_cast<std::int64_t*>(keys), reinterpret_cast<std::byte*>(values), divisor,
             factor);
}

}  // namespace

void bind_row_sums(py::module_& module) {
  py::class_<RowSums>(module, "RowSums")
      .def(py::init(&sums_of))
      .def_property_readonly("count", &RowSums::count)
      .def("write", &write);
}

}  // namespace rueda::bindings
