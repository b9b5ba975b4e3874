// The two binary interfaces that MPI libraries have, so that one program serves every MPI that is
// found when it runs, without headers: Open MPI's, and MPICH's, which Intel MPI shares.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "rueda/types.h"

namespace rueda_bench {

// Finds a symbol of the library; throws std::runtime_error where there is none.
using Lookup = std::function<void*(const std::string& symbol)>;

// How both name what Rueda's types and operations are: {Open MPI's symbol, MPICH's number}.
struct MpiName {
  const char* symbol;
  int number;
};

[[nodiscard]] constexpr MpiName mpi_type(rueda::DataType dtype) {
  using enum rueda::DataType;
  switch (dtype) {
    case float32: return {"ompi_mpi_float", 0x4c00040a};
    case float64: return {"ompi_mpi_double", 0x4c00080b};
    case int8: return {"ompi_mpi_int8_t", 0x4c000137};
    case int16: return {"ompi_mpi_int16_t", 0x4c000238};
    case int32: return {"ompi_mpi_int32_t", 0x4c000439};
    case int64: return {"ompi_mpi_int64_t", 0x4c00083a};
    case uint8: return {"ompi_mpi_uint8_t", 0x4c00013b};
    case uint16: return {"ompi_mpi_uint16_t", 0x4c00023c};
    case uint32: return {"ompi_mpi_uint32_t", 0x4c00043d};
    case uint64: return {"ompi_mpi_uint64_t", 0x4c00083e};
    case boolean: return {"ompi_mpi_c_bool", 0x4c00013f};
    case complex64: return {"ompi_mpi_c_float_complex", 0x4c000840};
    case complex128: return {"ompi_mpi_c_double_complex", 0x4c001041};
    case float16:
    case bfloat16: break;
  }
  return {nullptr, 0};
}

[[nodiscard]] constexpr MpiName mpi_op(rueda::ReduceOp op, bool boolean) {
  constexpr MpiName logical_and{"ompi_mpi_op_land", 0x58000005};
  constexpr MpiName logical_or{"ompi_mpi_op_lor", 0x58000007};
  using enum rueda::ReduceOp;
  switch (op) {
    case sum: return boolean ? logical_or : MpiName{"ompi_mpi_op_sum", 0x58000003};
    case product: return boolean ? logical_and : MpiName{"ompi_mpi_op_prod", 0x58000004};
    case min: return boolean ? logical_and : MpiName{"ompi_mpi_op_min", 0x58000002};
    case max: return boolean ? logical_or : MpiName{"ompi_mpi_op_max", 0x58000001};
    case bit_and: return boolean ? logical_and : MpiName{"ompi_mpi_op_band", 0x58000006};
    case bit_or: return boolean ? logical_or : MpiName{"ompi_mpi_op_bor", 0x58000008};
    case bit_xor:
      return boolean ? MpiName{"ompi_mpi_op_lxor", 0x58000009}
                     : MpiName{"ompi_mpi_op_bxor", 0x5800000a};
    case average: break;
  }
  return {nullptr, 0};
}

// Handles are pointers to objects of the library.
struct OpenMpiAbi {
  using Handle = void*;
  [[nodiscard]] static Handle handle(const Lookup& find, MpiName name) { return find(name.symbol); }
  [[nodiscard]] static Handle world(const Lookup& find) { return find("ompi_mpi_comm_world"); }
  [[nodiscard]] static void* in_place() { return reinterpret_cast<void*>(1); }
};

// Handles are numbers.
struct MpichAbi {
  using Handle = int;
  [[nodiscard]] static Handle handle(const Lookup& /*find*/, MpiName name) { return name.number; }
  [[nodiscard]] static Handle world(const Lookup& /*find*/) { return 0x44000000; }
  [[nodiscard]] static void* in_place() { return reinterpret_cast<void*>(-1); }
};

}  // namespace rueda_bench
