// Compiled, not run: csrc/jax/ffi_abi.h is what the header that jaxlib brings says.
#include "jax/ffi_abi.h"
#include "xla/ffi/api/c_api.h"

namespace ours = rueda::ffi;

#define SAME_OFFSET(our, member, their, their_member) \
  static_assert(offsetof(ours::our, member) == offsetof(their, their_member))
#define SAME_NUMBER(our, their) static_assert(static_cast<int>(our) == static_cast<int>(their))

static_assert(ours::abi_major == XLA_FFI_API_MAJOR);
static_assert(ours::abi_minor <= XLA_FFI_API_MINOR);
SAME_NUMBER(ours::extension_metadata, XLA_FFI_Extension_Metadata);
SAME_NUMBER(ours::attribute_scalar, XLA_FFI_AttrType_SCALAR);
SAME_NUMBER(ours::attribute_text, XLA_FFI_AttrType_STRING);

SAME_NUMBER(ours::Code::cancelled, XLA_FFI_Error_Code_CANCELLED);
SAME_NUMBER(ours::Code::invalid_argument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_NUMBER(ours::Code::deadline_exceeded, XLA_FFI_Error_Code_DEADLINE_EXCEEDED);
SAME_NUMBER(ours::Code::already_exists, XLA_FFI_Error_Code_ALREADY_EXISTS);
SAME_NUMBER(ours::Code::failed_precondition, XLA_FFI_Error_Code_FAILED_PRECONDITION);
SAME_NUMBER(ours::Code::unimplemented, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME_NUMBER(ours::Code::internal, XLA_FFI_Error_Code_INTERNAL);
SAME_NUMBER(ours::Code::unavailable, XLA_FFI_Error_Code_UNAVAILABLE);

SAME_NUMBER(ours::ElementType::boolean, XLA_FFI_DataType_PRED);
SAME_NUMBER(ours::ElementType::int8, XLA_FFI_DataType_S8);
SAME_NUMBER(ours::ElementType::int16, XLA_FFI_DataType_S16);
SAME_NUMBER(ours::ElementType::int32, XLA_FFI_DataType_S32);
SAME_NUMBER(ours::ElementType::int64, XLA_FFI_DataType_S64);
SAME_NUMBER(ours::ElementType::uint8, XLA_FFI_DataType_U8);
SAME_NUMBER(ours::ElementType::uint16, XLA_FFI_DataType_U16);
SAME_NUMBER(ours::ElementType::uint32, XLA_FFI_DataType_U32);
SAME_NUMBER(ours::ElementType::uint64, XLA_FFI_DataType_U64);
SAME_NUMBER(ours::ElementType::float16, XLA_FFI_DataType_F16);
SAME_NUMBER(ours::ElementType::float32, XLA_FFI_DataType_F32);
SAME_NUMBER(ours::ElementType::float64, XLA_FFI_DataType_F64);
SAME_NUMBER(ours::ElementType::complex64, XLA_FFI_DataType_C64);
SAME_NUMBER(ours::ElementType::bfloat16, XLA_FFI_DataType_BF16);
SAME_NUMBER(ours::ElementType::complex128, XLA_FFI_DataType_C128);

SAME_OFFSET(Extension, type, XLA_FFI_Extension_Base, type);
SAME_OFFSET(Extension, next, XLA_FFI_Extension_Base, next);
SAME_OFFSET(Version, minor_version, XLA_FFI_Api_Version, minor_version);
SAME_OFFSET(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_OFFSET(Buffer, data, XLA_FFI_Buffer, data);
SAME_OFFSET(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_OFFSET(Buffer, dims, XLA_FFI_Buffer, dims);
SAME_OFFSET(Text, size, XLA_FFI_ByteSpan, len);
SAME_OFFSET(Scalar, value, XLA_FFI_Scalar, value);
SAME_OFFSET(Buffers, size, XLA_FFI_Args, size);
SAME_OFFSET(Buffers, buffers, XLA_FFI_Args, args);
SAME_OFFSET(Buffers, buffers, XLA_FFI_Rets, rets);
static_assert(sizeof(ours::Buffers) == sizeof(XLA_FFI_Args));
static_assert(sizeof(ours::Buffers) == sizeof(XLA_FFI_Rets));
SAME_OFFSET(Attributes, types, XLA_FFI_Attrs, types);
SAME_OFFSET(Attributes, names, XLA_FFI_Attrs, names);
SAME_OFFSET(Attributes, values, XLA_FFI_Attrs, attrs);
static_assert(sizeof(ours::Attributes) == sizeof(XLA_FFI_Attrs));
SAME_OFFSET(ErrorCreate, message, XLA_FFI_Error_Create_Args, message);
SAME_OFFSET(ErrorCreate, code, XLA_FFI_Error_Create_Args, errc);
SAME_OFFSET(ErrorDestroy, error, XLA_FFI_Error_Destroy_Args, error);
SAME_OFFSET(FutureCreate, future, XLA_FFI_Future_Create_Args, future);
SAME_OFFSET(FutureSetAvailable, future, XLA_FFI_Future_SetAvailable_Args, future);
SAME_OFFSET(FutureSetError, error, XLA_FFI_Future_SetError_Args, error);
SAME_OFFSET(Api, version, XLA_FFI_Api, api_version);
SAME_OFFSET(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_OFFSET(Api, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME_OFFSET(Api, future_create, XLA_FFI_Api, XLA_FFI_Future_Create);
SAME_OFFSET(Api, future_set_available, XLA_FFI_Api, XLA_FFI_Future_SetAvailable);
SAME_OFFSET(Api, future_set_error, XLA_FFI_Api, XLA_FFI_Future_SetError);
SAME_OFFSET(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_OFFSET(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_OFFSET(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_OFFSET(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_OFFSET(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME_OFFSET(CallFrame, future, XLA_FFI_CallFrame, future);
SAME_OFFSET(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_OFFSET(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
