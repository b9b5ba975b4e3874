// The vocabulary of element types, reductions and tensors that every layer shares.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rueda {

// Element types. The numeric values travel between ranks, so they are part of the wire format.
enum class DataType : std::uint8_t {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
  complex64,
  complex128,
};

enum class DataKind : std::uint8_t { floating, integer, boolean, complex };

// One row per element type: everything that other tables (NumPy, DLPack, MPI) derive from.
struct DataTypeInfo {
  DataType id;
  std::string_view name;  // NumPy's name where NumPy has one, torch's otherwise ("bfloat16")
  std::size_t size;       // bytes per element
  DataKind kind;
};

inline constexpr std::array data_types{
    DataTypeInfo{DataType::float16, "float16", 2, DataKind::floating},
    DataTypeInfo{DataType::bfloat16, "bfloat16", 2, DataKind::floating},
    DataTypeInfo{DataType::float32, "float32", 4, DataKind::floating},
    DataTypeInfo{DataType::float64, "float64", 8, DataKind::floating},
    DataTypeInfo{DataType::int8, "int8", 1, DataKind::integer},
    DataTypeInfo{DataType::int16, "int16", 2, DataKind::integer},
    DataTypeInfo{DataType::int32, "int32", 4, DataKind::integer},
    DataTypeInfo{DataType::int64, "int64", 8, DataKind::integer},
    DataTypeInfo{DataType::uint8, "uint8", 1, DataKind::integer},
    DataTypeInfo{DataType::uint16, "uint16", 2, DataKind::integer},
    DataTypeInfo{DataType::uint32, "uint32", 4, DataKind::integer},
    DataTypeInfo{DataType::uint64, "uint64", 8, DataKind::integer},
    DataTypeInfo{DataType::boolean, "bool", 1, DataKind::boolean},
    DataTypeInfo{DataType::complex64, "complex64", 8, DataKind::complex},
    DataTypeInfo{DataType::complex128, "complex128", 16, DataKind::complex},
};

[[nodiscard]] constexpr const DataTypeInfo& info(DataType dtype) {
  return data_types.at(static_cast<std::size_t>(dtype));
}
[[nodiscard]] constexpr std::size_t size_of(DataType dtype) {
  return info(dtype).size;
}
[[nodiscard]] constexpr std::string_view name_of(DataType dtype) {
  return info(dtype).name;
}

// Element-wise reductions.
//
// `average` is a sum divided by the number of ranks that contributed; on integers the quotient is
// rounded towards negative infinity, like NumPy's `//`. On booleans, `sum` and `max` mean "or",
// `product` and `min` mean "and". `min` and `max` propagate NaN, like numpy.minimum/maximum.
enum class ReduceOp : std::uint8_t {
  sum,
  average,
  min,
  max,
  product,
  bit_and,
  bit_or,
  bit_xor,
};

inline constexpr std::array<std::string_view, 8> reduce_op_names{
    "sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor"};

[[nodiscard]] constexpr std::string_view name_of(ReduceOp op) {
  return reduce_op_names.at(static_cast<std::size_t>(op));
}

// Whether elements of `dtype` may travel as `wire`: float32 and float64 as any narrower
// floating-point type.
[[nodiscard]] constexpr bool can_travel_as(DataType wire, DataType dtype) {
  return info(wire).kind == DataKind::floating && info(dtype).kind == DataKind::floating &&
         size_of(dtype) >= 4 && size_of(wire) < size_of(dtype);
}

// Whether `op` is defined on `dtype`: no average of booleans, no minimum or maximum of complex
// numbers, bitwise operations only on integers and booleans.
[[nodiscard]] constexpr bool is_supported(ReduceOp op, DataType dtype) {
  const DataKind kind = info(dtype).kind;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product: return true;
    case ReduceOp::average: return kind != DataKind::boolean;
    case ReduceOp::min:
    case ReduceOp::max: return kind != DataKind::complex;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor: return kind == DataKind::integer || kind == DataKind::boolean;
  }
  return false;
}

using Shape = std::vector<std::int64_t>;

// Number of elements; 1 for a scalar (empty shape).
[[nodiscard]] inline std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

// "[3, 4]"
[[nodiscard]] std::string to_string(const Shape& shape);

// TensorView::device of a tensor in host memory; other values are CUDA device numbers.
inline constexpr int host_device = -1;

// A contiguous (row-major) tensor that somebody else owns. The memory must stay valid, and must
// not be written, until the handle of its operation has completed; on a GPU, until a stream that
// has waited for the handle (Handle::wait_on) gets there.
struct TensorView {
  void* data = nullptr;
  Shape shape;
  DataType dtype = DataType::float32;
  int device = host_device;  // or the number of the CUDA device whose memory it is
  // A stream of that device (cudaStream_t, CUstream; null is the default stream). What it has
  // enqueued by now is done before the tensor is read or written.
  void* stream = nullptr;

  [[nodiscard]] std::int64_t count() const { return element_count(shape); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count()) * size_of(dtype);
  }
};

}  // namespace rueda
