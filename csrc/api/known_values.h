// Refuses numbers that name no value of an enumeration: a caller may have cast them from anything,
// and every table would be read beyond its end.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "core/strings.h"
#include "rueda/compression.h"
#include "rueda/types.h"

namespace rueda {

template <class Value, class Table>
[[nodiscard]] Status check_known(Value value, const Table& table, const char* what) {
  const auto number = static_cast<std::size_t>(value);
  if (number < table.size()) return {};
  return {ErrorCode::invalid_argument, str(number, " is not a ", what)};
}

[[nodiscard]] inline Status check_known(DataType dtype) {
  return check_known(dtype, data_types, "rueda::DataType");
}
[[nodiscard]] inline Status check_known(ReduceOp op) {
  return check_known(op, reduce_op_names, "rueda::ReduceOp");
}
[[nodiscard]] inline Status check_known(CodecKind codec) {
  return check_known(codec, codec_names, "rueda::CodecKind");
}

}  // namespace rueda
