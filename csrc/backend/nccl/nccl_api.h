// The part of NCCL's C interface that Rueda uses. It is declared here because NCCL is loaded at run
// time and its package (some 200 MB) is not needed to build. The interface is stable: published
// numbers and layouts do not change.
#pragma once

#include <climits>
#include <cstddef>
#include <type_traits>

#include "cuda/handles.h"

namespace rueda::nccl {

struct CommOpaque;
using Comm = CommOpaque*;
struct WindowOpaque;
using Window = WindowOpaque*;

struct UniqueId {
  char internal[128];
};

enum Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum DataTypeNumber : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

enum RedOp : int { sum = 0, prod = 1, max = 2, min = 3 };

inline constexpr int window_symmetric = 1;

// As of 2.18; later versions accept it too. `size` and `version` say how much of it NCCL reads.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;  // INT_MIN: NCCL chooses
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// Member name, function name, type.
#define RUEDA_NCCL_FUNCTIONS(USE)                                                                \
  USE(get_version, ncclGetVersion, Result(int*))                                                 \
  USE(get_unique_id, ncclGetUniqueId, Result(UniqueId*))                                         \
  USE(get_error_string, ncclGetErrorString, const char*(Result))                                 \
  USE(get_last_error, ncclGetLastError, const char*(Comm))                                       \
  USE(comm_init_rank_config, ncclCommInitRankConfig, Result(Comm*, int, UniqueId, int, Config*)) \
  USE(comm_finalize, ncclCommFinalize, Result(Comm))                                             \
  USE(comm_destroy, ncclCommDestroy, Result(Comm))                                               \
  USE(comm_abort, ncclCommAbort, Result(Comm))                                                   \
  USE(comm_get_async_error, ncclCommGetAsyncError, Result(Comm, Result*))                        \
  USE(group_start, ncclGroupStart, Result())                                                     \
  USE(group_end, ncclGroupEnd, Result())                                                         \
  USE(all_reduce, ncclAllReduce,                                                                 \
      Result(const void*, void*, std::size_t, DataTypeNumber, RedOp, Comm, StreamHandle))        \
  USE(reduce, ncclReduce,                                                                        \
      Result(const void*, void*, std::size_t, DataTypeNumber, RedOp, int, Comm, StreamHandle))   \
  USE(reduce_scatter, ncclReduceScatter,                                                         \
      Result(const void*, void*, std::size_t, DataTypeNumber, RedOp, Comm, StreamHandle))        \
  USE(all_gather, ncclAllGather,                                                                 \
      Result(const void*, void*, std::size_t, DataTypeNumber, Comm, StreamHandle))               \
  USE(broadcast, ncclBroadcast,                                                                  \
      Result(const void*, void*, std::size_t, DataTypeNumber, int, Comm, StreamHandle))          \
  USE(send, ncclSend, Result(const void*, std::size_t, DataTypeNumber, int, Comm, StreamHandle)) \
  USE(recv, ncclRecv, Result(void*, std::size_t, DataTypeNumber, int, Comm, StreamHandle))       \
  USE(mem_alloc, ncclMemAlloc, Result(void**, std::size_t))                                      \
  USE(mem_free, ncclMemFree, Result(void*))                                                      \
  USE(comm_register, ncclCommRegister, Result(Comm, void*, std::size_t, void**))                 \
  USE(comm_deregister, ncclCommDeregister, Result(Comm, void*))                                  \
  USE(window_register, ncclCommWindowRegister, Result(Comm, void*, std::size_t, Window*, int))   \
  USE(window_deregister, ncclCommWindowDeregister, Result(Comm, Window))

struct Functions {
#define RUEDA_DECLARE(member, function, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  RUEDA_NCCL_FUNCTIONS(RUEDA_DECLARE)
#undef RUEDA_DECLARE
};

}  // namespace rueda::nccl
