#include "jax/call.h"

#include <optional>
#include <sstream>
#include <string_view>

#include "core/strings.h"

namespace rueda::jax {

namespace {

std::optional<DataType> data_type_of(ffi::ElementType type) {
  switch (type) {
    case ffi::ElementType::boolean: return DataType::boolean;
    case ffi::ElementType::int8: return DataType::int8;
    case ffi::ElementType::int16: return DataType::int16;
    case ffi::ElementType::int32: return DataType::int32;
    case ffi::ElementType::int64: return DataType::int64;
    case ffi::ElementType::uint8: return DataType::uint8;
    case ffi::ElementType::uint16: return DataType::uint16;
    case ffi::ElementType::uint32: return DataType::uint32;
    case ffi::ElementType::uint64: return DataType::uint64;
    case ffi::ElementType::float16: return DataType::float16;
    case ffi::ElementType::float32: return DataType::float32;
    case ffi::ElementType::float64: return DataType::float64;
    case ffi::ElementType::complex64: return DataType::complex64;
    case ffi::ElementType::bfloat16: return DataType::bfloat16;
    case ffi::ElementType::complex128: return DataType::complex128;
  }
  return std::nullopt;
}

std::vector<TensorView> views_of(const ffi::Buffers& buffers) {
  std::vector<TensorView> views;
  views.reserve(static_cast<std::size_t>(buffers.size));
  for (std::int64_t i = 0; i < buffers.size; ++i) {
    const auto& buffer = *static_cast<const ffi::Buffer*>(buffers.buffers[i]);
    const std::optional<DataType> dtype = data_type_of(buffer.dtype);
    if (!dtype) {
      throw InvalidArgumentError(str("XLA's element type ", static_cast<int>(buffer.dtype),
                                     " has no counterpart in Rueda"));
    }
    views.push_back({buffer.data, Shape(buffer.dims, buffer.dims + buffer.rank), *dtype});
  }
  return views;
}

const void* attribute(const ffi::Attributes& attributes, std::string_view name, int type) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const ffi::Text& each = *attributes.names[i];
    if (std::string_view(each.data, each.size) == name && attributes.types[i] == type) {
      return attributes.values[i];
    }
  }
  throw InvalidArgumentError(str("the XLA call has no attribute '", name, "'"));
}

std::string text_of(const ffi::Attributes& attributes, std::string_view name) {
  const auto& text =
      *static_cast<const ffi::Text*>(attribute(attributes, name, ffi::attribute_text));
  return {text.data, text.size};
}

int number_of(const ffi::Attributes& attributes, std::string_view name) {
  const auto& scalar =
      *static_cast<const ffi::Scalar*>(attribute(attributes, name, ffi::attribute_scalar));
  if (scalar.dtype != ffi::ElementType::int32) {
    throw InvalidArgumentError(str("attribute '", name, "' is not an int32"));
  }
  return *static_cast<const std::int32_t*>(scalar.value);
}

ffi::Code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::mismatch: return ffi::Code::invalid_argument;
    case ErrorCode::unsupported: return ffi::Code::unimplemented;
    case ErrorCode::duplicate_name: return ffi::Code::already_exists;
    case ErrorCode::stalled:
    case ErrorCode::timeout: return ffi::Code::deadline_exceeded;
    case ErrorCode::peer_lost:
    case ErrorCode::transport: return ffi::Code::unavailable;
    case ErrorCode::shutdown: return ffi::Code::cancelled;
    case ErrorCode::not_initialized:
    case ErrorCode::initialization: return ffi::Code::failed_precondition;
    case ErrorCode::ok:
    case ErrorCode::internal: break;
  }
  return ffi::Code::internal;
}

}  // namespace

Call read_call(const ffi::CallFrame& frame) {
  Call call;
  call.kind = text_of(frame.attributes, "kind");
  call.name = text_of(frame.attributes, "name");
  std::istringstream paths(text_of(frame.attributes, "paths"));
  for (std::string path; std::getline(paths, path);) call.paths.push_back(path);
  call.tree = number_of(frame.attributes, "tree");
  call.op = static_cast<ReduceOp>(number_of(frame.attributes, "op"));
  call.root = number_of(frame.attributes, "root");
  call.process_set.id = number_of(frame.attributes, "process_set");
  call.world = number_of(frame.attributes, "world");
  call.inputs = views_of(frame.arguments);
  call.outputs = views_of(frame.results);
  if (call.paths.size() != call.inputs.size() || call.outputs.size() != call.inputs.size()) {
    throw InvalidArgumentError("the XLA call has different numbers of inputs, results and paths");
  }
  return call;
}

ffi::Error* make_error(const ffi::Api& api, ErrorCode code, const std::string& text) {
  ffi::ErrorCreate arguments{sizeof(arguments), nullptr, text.c_str(), code_of(code)};
  return api.error_create(&arguments);
}

}  // namespace rueda::jax
