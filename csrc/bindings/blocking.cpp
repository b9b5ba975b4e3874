#include "blocking.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/bindings.h"
#include "arrays.h"
#include "core/clock.h"
#include "core/strings.h"
#include "errors.h"
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

// None means no name; nothing if the value is not a str.
std::optional<std::string_view> text(py::handle value) {
  if (value.is_none()) return std::string_view();
  if (!PyUnicode_CheckExact(value.ptr())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* const read = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (read != nullptr) return std::string_view(read, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

// Nothing if an argument is not of the usual type: the caller then takes the slow path, which
// converts it or refuses it on every rank. Has no tensor yet; the name points into `name`.
std::optional<PlainAllreduce> call_of(py::handle name, py::handle op, py::handle prescale,
                                      py::handle postscale, py::handle set) {
  const auto label = text(name);
  const auto reduction = small_integer(op, static_cast<int>(reduce_op_names.size()));
  const auto before = number(prescale);
  const auto after = number(postscale);
  const auto process_set = small_integer(set, std::numeric_limits<int>::max());
  if (!label || !reduction || !before || !after || !process_set) return std::nullopt;
  return PlainAllreduce{.name = *label,
                        .op = static_cast<ReduceOp>(*reduction),
                        .prescale_factor = *before,
                        .postscale_factor = *after,
                        .process_set = {*process_set}};
}

void keep_alive(const Handle& handle, py::handle source, py::handle target) {
  py::module_::import("rueda.handles").attr("keep_alive")(handle, py::make_tuple(source, target));
}

// Propagates what a signal handler raised: the wait ends, not the operation.
[[noreturn]] void leave_behind(const Handle& handle, py::handle source, py::handle target) {
  const py::error_already_set raised;
  keep_alive(handle, source, target);
  throw raised;
}

// For a call that repeats none. The caller does not hold the GIL, so everything has been copied.
Handle submit(const PlainAllreduce& call, Shape shape, AllreduceOptions options, Time deadline) {
  const TensorView view{const_cast<void*>(call.input), std::move(shape), call.dtype};
  return allreduce_blocking(view, call.output, options, deadline);
}

// Repeats an earlier call within a moment, holding the GIL: releasing and retaking it would take as
// long. Returns nothing if it is done, otherwise a handle to wait for.
std::optional<Handle> begin(const PlainAllreduce& call, std::optional<Time> deadline) {
  std::optional<GilReleased> released;
  Handle handle;
  const Tried tried = try_to_repeat(
      call,
      [&] {
        released.emplace();
        return end_of_sleep(deadline);
      },
      handle);
  if (tried == Tried::done) return std::nullopt;
  if (tried == Tried::begun) return handle;
  Shape shape(call.shape.begin(), call.shape.end());
  AllreduceOptions options{.name = std::string(call.name),
                           .op = call.op,
                           .prescale_factor = call.prescale_factor,
                           .postscale_factor = call.postscale_factor,
                           .process_set = call.process_set};
  released.emplace();
  return submit(call, std::move(shape), std::move(options), end_of_sleep(deadline));
}

// False if it has not completed within `limit` seconds; the operation then continues.
bool reduce(const PlainAllreduce& call, py::handle source, py::handle target,
            std::optional<double> limit = std::nullopt) {
  std::optional<Time> deadline;
  if (limit) deadline = Clock::now() + seconds(std::clamp(*limit, 0.0, 1e9));
  const std::optional<Handle> begun = begin(call, deadline);
  if (!begun) return true;
  const Handle& handle = *begun;
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

// False if anything is unusual: then nothing has been submitted.
bool allreduce_arrays(py::handle source, py::handle target, py::handle name, py::handle op,
                      py::handle prescale, py::handle postscale, py::handle set) {
  if (!is_plain_array(source)) return false;
  auto call = call_of(name, op, prescale, postscale, set);
  if (!call) return false;
  const auto input = memory_of(source);
  if (!input || !input->is_contiguous) return false;
  call->input = call->output = input->data;
  call->shape = input->shape;
  call->dtype = input->dtype;
  if (source.is(target)) {
    if (!input->is_writeable) return false;
  } else {
    call->output = reinterpret_cast<void*>(address_of(target));
  }
  reduce(*call, source, target);
  return true;
}

// Called without pybind11, which would take longer than everything else in a small call.
PyObject* call_allreduce_arrays(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  if (count != 7) {
    PyErr_Format(PyExc_TypeError, "allreduce_arrays() takes 7 arguments, not %zd", count);
    return nullptr;
  }
  try {
    return PyBool_FromLong(
        allreduce_arrays(given[0], given[1], given[2], given[3], given[4], given[5], given[6]));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// The same for memory given by address: `shape` is a tuple of integers. With a limit in seconds,
// throws TimeoutError once it has passed.
bool allreduce_memory(py::handle source, py::handle target, std::uintptr_t input,
                      std::uintptr_t output, const py::tuple& shape, int dtype, py::handle name,
                      py::handle op, py::handle prescale, py::handle postscale, py::handle set,
                      std::optional<double> limit) {
  auto call = call_of(name, op, prescale, postscale, set);
  if (!call) return false;
  Shape extents(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i)));
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  call->input = reinterpret_cast<const void*>(input);
  call->output = reinterpret_cast<void*>(output);
  call->shape = extents;
  call->dtype = static_cast<DataType>(dtype);
  if (!reduce(*call, source, target, limit)) {
    throw TimeoutError(str("allreduce '", call->name, "' has not completed within ", *limit,
                           " s. Timed out waiting ", std::llround(*limit * 1000),
                           "ms for all ranks: some rank has not taken part"),
                       -1, {.reason = ErrorReason::deadline});
  }
  return true;
}

// Raises what a signal handler raises; the barrier then continues.
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
  static const PyMethodDef definition{
      "allreduce_arrays",
      // METH_FASTCALL determines the actual type.
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_allreduce_arrays)),
      METH_FASTCALL, nullptr};
  module.add_object("allreduce_arrays",
                    py::reinterpret_steal<py::object>(PyCFunction_NewEx(
                        const_cast<PyMethodDef*>(&definition), module.ptr(), nullptr)));
  module.def("allreduce_memory", &allreduce_memory, py::arg("source"), py::arg("target"),
             py::arg("input"), py::arg("output"), py::arg("shape"), py::arg("dtype"),
             py::arg("name"), py::arg("op"), py::arg("prescale"), py::arg("postscale"),
             py::arg("set"), py::arg("limit") = py::none());
  module.def("address_of", &address_of);
}

}  // namespace rueda::bindings
