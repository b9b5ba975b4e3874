#include "tables.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gil.h"
#include "rueda/server.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

template <class T>
std::span<T> array(std::uintptr_t address, std::size_t count) {
  return {reinterpret_cast<T*>(address), count};
}

template <class T>
py::bytes bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::unique_ptr<Table> open(const std::string& name, std::int64_t size, std::int64_t width,
                            float value, float spread, std::uint64_t seed,
                            std::vector<std::int64_t> bounds, const std::string& rule,
                            std::vector<double> parameters, bool in_ring_order, bool replicated,
                            int set) {
  const TableOptions options{.name = name,
                             .size = size,
                             .width = width,
                             .initial = {value, spread, seed},
                             .bounds = std::move(bounds),
                             .rule = rule,
                             .parameters = std::move(parameters),
                             .order = in_ring_order ? TableOrder::ring : TableOrder::as_they_come,
                             .replicated = replicated,
                             .process_set = {set}};
  return interruptibly([&] { return std::make_unique<Table>(options); });
}

py::list call(Table& table, const std::string& function, const std::string& arguments) {
  const auto results = interruptibly([&] {
    return table.call(function, std::as_bytes(std::span(arguments.data(), arguments.size())));
  });
  py::list list;
  for (const auto& result : results) list.append(bytes_of(result));
  return list;
}

py::list parts(const Table& table) {
  py::list list;
  for (const TablePart& part : table.parts()) {
    list.append(py::make_tuple(part.owner, part.version, part.begin, bytes_of(part.rows),
                               bytes_of(part.values), bytes_of(part.state)));
  }
  return list;
}

}  // namespace

void bind_tables(py::module_& module) {
  const py::call_guard<GilReleased> released;
  py::class_<Table>(module, "Table")
      .def(py::init(&open))
      .def_property_readonly("bounds", &Table::bounds)
      .def(
          "get",
          [](Table& table, std::uintptr_t out, std::size_t count, std::int64_t begin,
             std::int64_t min_clock) {
            return table.get(array<float>(out, count), {begin, min_clock});
          },
          released)
      .def(
          "put",
          [](Table& table, std::uintptr_t values, std::size_t count, std::int64_t begin) {
            return table.put(array<const float>(values, count), begin);
          },
          released)
      .def(
          "add",
          [](Table& table, std::uintptr_t delta, std::size_t count, std::int64_t begin,
             float factor, bool by_staleness, bool ticks) {
            return table.add(array<const float>(delta, count),
                             {begin, factor, by_staleness, ticks});
          },
          released)
      .def(
          "get_rows",
          [](Table& table, std::uintptr_t rows, std::size_t count, std::uintptr_t owners,
             std::uintptr_t out, std::size_t elements, std::int64_t min_clock) {
            return table.get_rows(
                array<const std::int64_t>(rows, count), array<float>(out, elements),
                array<const int>(owners, owners != 0 ? count : 0), {0, min_clock});
          },
          released)
      .def(
          "put_rows",
          [](Table& table, std::uintptr_t rows, std::size_t count, std::uintptr_t owners,
             std::uintptr_t values, std::size_t elements) {
            return table.put_rows(array<const std::int64_t>(rows, count),
                                  array<const float>(values, elements),
                                  array<const int>(owners, owners != 0 ? count : 0));
          },
          released)
      .def(
          "add_rows",
          [](Table& table, std::uintptr_t rows, std::size_t count, std::uintptr_t owners,
             std::uintptr_t delta, std::size_t elements, float factor, bool by_staleness,
             bool ticks) {
            return table.add_rows(array<const std::int64_t>(rows, count),
                                  array<const float>(delta, elements),
                                  array<const int>(owners, owners != 0 ? count : 0),
                                  {0, factor, by_staleness, ticks});
          },
          released)
      .def("owner_of", &Table::owner_of)
      .def("tick", &Table::tick, released)
      .def("finish", &Table::finish, released)
      .def("restart", &Table::restart, released)
      .def(
          "put_state",
          [](Table& table, std::uintptr_t state, std::size_t elements, std::int64_t begin,
             std::int64_t count) {
            return table.put_state(array<const float>(state, elements), begin, count);
          },
          released)
      .def(
          "put_row_state",
          [](Table& table, std::uintptr_t rows, std::size_t count, std::uintptr_t owners,
             std::uintptr_t state, std::size_t elements) {
            return table.put_row_state(array<const std::int64_t>(rows, count),
                                       array<const float>(state, elements),
                                       array<const int>(owners, owners != 0 ? count : 0));
          },
          released)
      .def("clocks", &Table::clocks)
      .def("call", &call)
      .def("staleness", &Table::staleness)
      .def("seen", &Table::seen)
      .def("parts", &parts)
      .def("close", [](Table& table) { interruptibly([&] { table.close(); }); });
}

}  // namespace rueda::bindings
