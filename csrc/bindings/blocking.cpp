#include "blocking.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "api/bindings.h"
#include "arrays.h"
#include "core/clock.h"
#include "core/strings.h"
#include "gil.h"
#include "handle.h"
#include "rueda/rueda.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

std::optional<double> number(py::handle value) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  return std::nullopt;
}

std::optional<int> small_integer(py::handle value, int end) {
  if (!PyLong_Check(value.ptr())) return std::nullopt;
  int overflow = 0;
  const long read = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || read < 0 || read >= end) return std::nullopt;
  return static_cast<int>(read);
}

// None is no name; nothing for what is no text.
std::optional<std::string> text(py::handle value) {
  if (value.is_none()) return std::string();
  if (!PyUnicode_CheckExact(value.ptr())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* const read = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (read != nullptr) return std::string(read, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

// Nothing where an argument is not of the usual kind: the caller goes the long way then, which
// converts it or refuses it on every rank.
std::optional<AllreduceOptions> options_of(py::handle name, py::handle op, py::handle prescale,
                                           py::handle postscale, py::handle set) {
  auto label = text(name);
  const auto reduction = small_integer(op, static_cast<int>(reduce_op_names.size()));
  const auto before = number(prescale);
  const auto after = number(postscale);
  const auto process_set = small_integer(set, std::numeric_limits<int>::max());
  if (!label || !reduction || !before || !after || !process_set) return std::nullopt;
  return AllreduceOptions{.name = *std::move(label),
                          .op = static_cast<ReduceOp>(*reduction),
                          .prescale_factor = *before,
                          .postscale_factor = *after,
                          .process_set = {*process_set}};
}

void keep_alive(const Handle& handle, py::handle source, py::handle target) {
  py::module_::import("rueda.handles").attr("keep_alive")(handle, py::make_tuple(source, target));
}

// What a signal handler has raised ends the waiting, not the operation.
[[noreturn]] void leave_behind(const Handle& handle, py::handle source, py::handle target) {
  const py::error_already_set raised;
  keep_alive(handle, source, target);
  throw raised;
}

// False where it has not completed within `limit` seconds; the operation goes on then.
bool reduce(const TensorView& view, void* output, const AllreduceOptions& options,
            py::handle source, py::handle target, std::optional<double> limit = std::nullopt) {
  std::optional<Time> deadline;
  if (limit) deadline = Clock::now() + seconds(std::clamp(*limit, 0.0, 1e9));
  Handle handle;
  {
    const GilReleased released;
    handle = allreduce_blocking(view, output, options, end_of_sleep(deadline));
  }
  while (!handle.done()) {
    if (PyErr_CheckSignals() != 0) leave_behind(handle, source, target);
    if (deadline && Clock::now() >= *deadline) {
      keep_alive(handle, source, target);
      return false;
    }
    const GilReleased released;
    sleep_once(handle, deadline);
  }
  handle.wait();  // throws its error
  return true;
}

// False where something is unusual: nothing has been submitted then.
bool allreduce_arrays(py::handle source, py::handle target, py::handle name, py::handle op,
                      py::handle prescale, py::handle postscale, py::handle set) {
  const auto options = options_of(name, op, prescale, postscale, set);
  if (!options) return false;
  const auto input = memory_of(source);
  if (!input || !input->is_contiguous) return false;
  void* output = input->view.data;
  if (source.is(target)) {
    if (!input->is_writeable) return false;
  } else {
    output = reinterpret_cast<void*>(address_of(target));
  }
  reduce(input->view, output, *options, source, target);
  return true;
}

// The same for memory that the caller knows: `shape` is a tuple of integers. With a limit in
// seconds, throws TimeoutError where it has passed.
bool allreduce_memory(py::handle source, py::handle target, std::uintptr_t input,
                      std::uintptr_t output, const py::tuple& shape, int dtype, py::handle name,
                      py::handle op, py::handle prescale, py::handle postscale, py::handle set,
                      std::optional<double> limit) {
  const auto options = options_of(name, op, prescale, postscale, set);
  if (!options) return false;
  TensorView view{reinterpret_cast<void*>(input), Shape(shape.size()),
                  static_cast<DataType>(dtype)};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    view.shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i)));
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (!reduce(view, reinterpret_cast<void*>(output), *options, source, target, limit)) {
    throw TimeoutError(str("allreduce '", options->name, "' has not completed within ", *limit,
                           " s. Timed out waiting ", std::llround(*limit * 1000),
                           "ms for all ranks: some rank has not taken part"),
                       -1, {.reason = ErrorReason::deadline});
  }
  return true;
}

// Raises what a signal handler raises; the barrier goes on then.
void pass_barrier(const std::string& name, int set) {
  Handle handle;
  {
    const GilReleased released;
    handle = barrier_blocking({name, {set}}, end_of_sleep(std::nullopt));
  }
  while (!handle.done()) {
    raise_signals();
    const GilReleased released;
    sleep_once(handle);
  }
  handle.wait();  // throws its error
}

}  // namespace

void bind_blocking(py::module_& module) {
  module.def("pass_barrier", &pass_barrier, py::arg("name"), py::arg("set"));
  module.def("allreduce_arrays", &allreduce_arrays);
  module.def("allreduce_memory", &allreduce_memory, py::arg("source"), py::arg("target"),
             py::arg("input"), py::arg("output"), py::arg("shape"), py::arg("dtype"),
             py::arg("name"), py::arg("op"), py::arg("prescale"), py::arg("postscale"),
             py::arg("set"), py::arg("limit") = py::none());
  module.def("address_of", &address_of);
}

}  // namespace rueda::bindings
