#include "blocking.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
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

using Arguments = std::span<PyObject* const>;

// Takes source, target, name, op, prescale, postscale and set. False if anything is unusual: then
// nothing has been submitted.
bool allreduce_arrays(Arguments given) {
  const py::handle source = given[0];
  const py::handle target = given[1];
  if (!is_plain_array(source)) return false;
  auto call = call_of(given[2], given[3], given[4], given[5], given[6]);
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

void throw_if_raised() {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

// The same for memory given by address: takes source, target, their addresses, the shape as a tuple
// of integers, the number of the element type, name, op, prescale, postscale, set, a limit in
// seconds or None, and how much longer to wait in which the engine may tell more. Then throws
// TimeoutError.
bool allreduce_memory(Arguments given) {
  auto call = call_of(given[6], given[7], given[8], given[9], given[10]);
  if (!call) return false;
  call->input = PyLong_AsVoidPtr(given[2]);
  call->output = PyLong_AsVoidPtr(given[3]);
  Shape extents(static_cast<std::size_t>(std::max<Py_ssize_t>(0, PyTuple_Size(given[4]))));
  throw_if_raised();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given[4], static_cast<Py_ssize_t>(i)));
  }
  call->shape = extents;
  call->dtype = static_cast<DataType>(PyLong_AsLong(given[5]));
  std::optional<double> limit;
  if (given[11] != Py_None) limit = PyFloat_AsDouble(given[11]);
  const double grace = PyFloat_AsDouble(given[12]);
  throw_if_raised();
  if (!reduce(*call, given[0], given[1], limit ? std::optional(*limit + grace) : std::nullopt)) {
    throw TimeoutError(str("allreduce '", call->name, "' has not completed within ", *limit,
                           " s. Timed out waiting ", std::llround(*limit * 1000),
                           "ms for all ranks: some rank has not taken part"),
                       -1, {.reason = ErrorReason::deadline});
  }
  return true;
}

// A function that Python calls without pybind11, which would take longer than everything else in a
// small call.
struct Direct {
  const char* name;
  Py_ssize_t count;  // of arguments, all by position
  bool (*function)(Arguments);
};

constexpr Direct direct_arrays{"allreduce_arrays", 7, &allreduce_arrays};
constexpr Direct direct_memory{"allreduce_memory", 13, &allreduce_memory};

template <const Direct& direct>
PyObject* call_directly(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  if (count != direct.count) {
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", direct.name, direct.count,
                 count);
    return nullptr;
  }
  try {
    return PyBool_FromLong(direct.function({given, static_cast<std::size_t>(count)}));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

template <const Direct& direct>
void add_directly(py::module_& module) {
  static const PyMethodDef definition{
      direct.name,
      // METH_FASTCALL determines the actual type.
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_directly<direct>)),
      METH_FASTCALL, nullptr};
  module.add_object(direct.name,
                    py::reinterpret_steal<py::object>(PyCFunction_NewEx(
                        const_cast<PyMethodDef*>(&definition), module.ptr(), nullptr)));
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
  add_directly<direct_arrays>(module);
  add_directly<direct_memory>(module);
  module.def("address_of", &address_of);
}

}  // namespace rueda::bindings
