#include "errors.h"

#include <exception>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "text.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: break;
    case ErrorCode::invalid_argument: return "InvalidArgumentError";
    case ErrorCode::unsupported: return "UnsupportedError";
    case ErrorCode::mismatch: return "MismatchError";
    case ErrorCode::duplicate_name: return "DuplicateNameError";
    case ErrorCode::stalled: return "StalledError";
    case ErrorCode::timeout: return "TimeoutError";
    case ErrorCode::peer_lost: return "PeerLostError";
    case ErrorCode::shutdown: return "ShutdownError";
    case ErrorCode::not_initialized: return "NotInitializedError";
    case ErrorCode::initialization: return "InitializationError";
    case ErrorCode::transport: return "TransportError";
    case ErrorCode::internal: return "InternalError";
  }
  return "RuedaError";
}

// Never destroyed: threads may raise until the process ends.
std::map<std::string, py::object>& classes() {
  static auto* const loaded = new std::map<std::string, py::object>;
  return *loaded;
}

py::object text_or_none(const std::string& text) {
  return text.empty() ? py::object(py::none()) : shown_text(text);
}

py::tuple tuple_of(const std::vector<std::string>& texts) {
  py::tuple tuple(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) tuple[i] = shown_text(texts[i]);
  return tuple;
}

// Runs no Python code, neither an import nor a constructor: handlers of pending signals would run
// in it, and what they raise would replace the error.
void raise(const Error& error) {
  const py::object& type = classes().at(class_of(error.code()));
  const py::object peer = error.peer() < 0 ? py::object(py::none()) : py::int_(error.peer());
  const ErrorDetails& details = error.details();
  const py::tuple arguments = py::make_tuple(shown_text(error.what()));
  auto* const made = reinterpret_cast<PyTypeObject*>(type.ptr());
  const auto instance =
      py::reinterpret_steal<py::object>(made->tp_new(made, arguments.ptr(), nullptr));
  if (!instance) return;  // keeps the error that is set, such as MemoryError
  instance.attr("args") = arguments;
  instance.attr("peer") = peer;
  instance.attr("reason") = text_or_none(std::string(name_of(details.reason)));
  instance.attr("tensor") = text_or_none(details.tensor);
  instance.attr("field") = text_or_none(details.field);
  instance.attr("values") = tuple_of(details.values);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

}  // namespace

void set_python_error() {
  try {
    throw;
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const Error& error) {
    raise(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetObject(PyExc_RuntimeError, shown_text(error.what()).ptr());
  }
}

ErrorReason error_reason(const std::string& name) {
  for (const ErrorReason reason :
       {ErrorReason::deadline, ErrorReason::gradient_misfit, ErrorReason::not_finite,
        ErrorReason::ended, ErrorReason::refused, ErrorReason::unreachable}) {
    if (name == name_of(reason)) return reason;
  }
  return ErrorReason::unspecified;
}

void register_errors() {
  const auto errors = py::module_::import("rueda.errors");
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    const std::string name = class_of(static_cast<ErrorCode>(code));
    classes()[name] = errors.attr(name.c_str());
  }
  py::register_local_exception_translator([](std::exception_ptr exception) {
    try {
      if (exception) std::rethrow_exception(exception);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace rueda::bindings
