// The part of XLA's C ABI for calling other libraries ("typed FFI") that Rueda uses; unchanged
// since version 0.1. Declared here so that the wheel is built without jaxlib and works with any
// version: XLA promises to add fields only at the end of a struct, and with a new minor version.
// tests/engines/jax compares this with the header in jaxlib.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::ffi {

inline constexpr int abi_major = 0;
inline constexpr int abi_minor = 1;  // the oldest that has all of this

// Opaque: XLA's.
struct Error;
struct Future;
struct ExecutionContext;
struct InternalApi;

inline constexpr int extension_metadata = 1;
struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major_version;
  int minor_version;
};

// The codes of absl::Status.
enum class Code : int {
  cancelled = 1,
  invalid_argument = 3,
  deadline_exceeded = 4,
  already_exists = 6,
  failed_precondition = 9,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
};

// The codes of xla::PrimitiveType.
enum class ElementType : int {
  boolean = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  uint8 = 6,
  uint16 = 7,
  uint32 = 8,
  uint64 = 9,
  float16 = 10,
  float32 = 11,
  float64 = 12,
  complex64 = 15,
  bfloat16 = 16,
  complex128 = 18,
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  ElementType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct Text {  // not zero-terminated
  const char* data;
  std::size_t size;
};
struct Scalar {
  ElementType dtype;
  void* value;
};

// Arguments and results, all of them buffers.
struct Buffers {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  void** buffers;
};

inline constexpr int attribute_scalar = 3;
inline constexpr int attribute_text = 4;
struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  Text** names;
  void** values;
};

struct ErrorCreate {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  Code code;
};
struct FutureCreate {
  std::size_t struct_size;
  Extension* extension;
  Future* future;  // out
};
struct FutureSetAvailable {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
};
struct FutureSetError {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
  Error* error;  // ownership passes to XLA
};
struct ErrorDestroy {
  std::size_t struct_size;
  Extension* extension;
  Error* error;
};

struct Api {
  std::size_t struct_size;
  Extension* extension;
  Version version;
  const InternalApi* internal;
  Error* (*error_create)(ErrorCreate*);
  void* error_get_message;
  void (*error_destroy)(ErrorDestroy*);
  void* unused[10];
  Error* (*future_create)(FutureCreate*);
  Error* (*future_set_available)(FutureSetAvailable*);
  Error* (*future_set_error)(FutureSetError*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  ExecutionContext* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // out: keeps arguments and results alive until it is completed
};

// With this XLA asks a handler, before it first calls it, for its version.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace rueda::ffi
