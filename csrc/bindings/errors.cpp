#include "errors.h"

#include "rueda/error.h"

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

void raise(const Error& error) {
  const py::object peer = error.peer() < 0 ? py::object(py::none()) : py::int_(error.peer());
  const py::object type = py::module_::import("rueda.errors").attr(class_of(error.code()));
  const py::object instance = type(error.what(), peer);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

}  // namespace

void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr exception) {
    try {
      if (exception) std::rethrow_exception(exception);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace rueda::bindings
