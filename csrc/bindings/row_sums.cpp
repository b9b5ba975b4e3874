#include "row_sums.h"

#include <pybind11/stl.h>

#include <algorithm>
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

// Returns how many keys were written.
std::size_t write_sample(std::uintptr_t keys, std::size_t count, std::size_t limit,
                         std::uintptr_t target) {
  const GilReleased released;
  const KeyedRows rows{reinterpret_cast<const void*>(keys), nullptr, count};
  const auto sample = sample_keys(rows, sizeof(std::int64_t), limit);
  std::ranges::copy(sample, reinterpret_cast<std::int64_t*>(target));
  return sample.size();
}

// Address of the sampled keys, their number, and the number of rows.
using Sample = std::tuple<std::uintptr_t, std::size_t, std::int64_t>;

UnionSample union_of(const std::vector<Sample>& given, std::size_t key_bytes, std::int64_t extent) {
  std::vector<KeySample> samples;
  samples.reserve(given.size());
  for (const auto& [keys, count, rows] : given) {
    samples.push_back({{reinterpret_cast<const void*>(keys), nullptr, count}, rows});
  }
  return {samples, key_bytes, extent};
}

}  // namespace

void bind_row_sums(py::module_& module) {
  py::class_<RowSums>(module, "RowSums")
      .def(py::init(&sums_of))
      .def_property_readonly("count", &RowSums::count)
      .def("write", &write);
  module.def("sample_keys", &write_sample);
  py::class_<UnionSample>(module, "UnionSample")
      .def(py::init(&union_of))
      .def_property_readonly("rows", &UnionSample::rows)
      .def("boundaries", &UnionSample::boundaries);
}

}  // namespace rueda::bindings
