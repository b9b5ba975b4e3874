// Maps Rueda's element types and operations to NCCL's, one row each.
#include "backend/nccl/library.h"
#include "core/strings.h"

namespace rueda {

namespace {

struct TypeRow {
  DataType dtype;
  nccl::DataTypeNumber number;
  std::size_t parts;
};

// In the order of data_types, without 16-bit integers and booleans.
constexpr TypeRow types[]{
    {DataType::float16, nccl::float16, 1},   {DataType::bfloat16, nccl::bfloat16, 1},
    {DataType::float32, nccl::float32, 1},   {DataType::float64, nccl::float64, 1},
    {DataType::int8, nccl::int8, 1},         {DataType::int32, nccl::int32, 1},
    {DataType::int64, nccl::int64, 1},       {DataType::uint8, nccl::uint8, 1},
    {DataType::uint32, nccl::uint32, 1},     {DataType::uint64, nccl::uint64, 1},
    {DataType::complex64, nccl::float32, 2}, {DataType::complex128, nccl::float64, 2},
};

const TypeRow* row_of(DataType dtype) {
  for (const TypeRow& row : types) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

// Booleans are bytes holding 0 or 1, so "or" is the maximum and "and" the minimum.
Expected<NcclReduction> reduction_of_booleans(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or: return NcclReduction{nccl::uint8, nccl::max, 1};
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and: return NcclReduction{nccl::uint8, nccl::min, 1};
    default: return Status(ErrorCode::unsupported, str("NCCL has no ", name_of(op), " of bool"));
  }
}

}  // namespace

Expected<NcclReduction> nccl_reduction(ReduceOp op, DataType dtype) {
  const Status refused(ErrorCode::unsupported,
                       str("NCCL has no ", name_of(op), " of ", name_of(dtype)));
  if (!is_supported(op, dtype)) return refused;
  if (dtype == DataType::boolean) return reduction_of_booleans(op);
  const TypeRow* row = row_of(dtype);
  if (row == nullptr) return refused;
  const DataKind kind = info(dtype).kind;
  switch (op) {
    case ReduceOp::sum: return NcclReduction{row->number, nccl::sum, row->parts};
    case ReduceOp::min: return NcclReduction{row->number, nccl::min, 1};
    case ReduceOp::max: return NcclReduction{row->number, nccl::max, 1};
    case ReduceOp::product:
      // The complex product is not componentwise.
      if (kind == DataKind::complex) return refused;
      return NcclReduction{row->number, nccl::prod, 1};
    default: return refused;
  }
}

}  // namespace rueda
