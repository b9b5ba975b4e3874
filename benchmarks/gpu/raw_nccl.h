// NCCL's own functions and nothing between them and the caller, for measurements beside them.
#pragma once

#include <dlfcn.h>

#include <climits>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace raw_nccl {

using Communicator = void*;
using Stream = void*;
inline constexpr int float32 = 7;  // of ncclDataType_t
inline constexpr int sum = 0;      // of ncclRedOp_t

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as of 2.18: NCCL reads as much of it as `size` and `version` tell.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 1;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// A blocking communicator of one rank. Of the library that RUEDA_NCCL_LIBRARY names, else of
// libnccl.so.2.
class OneRank {
 public:
  OneRank() {
    const char* named = std::getenv("RUEDA_NCCL_LIBRARY");
    library_ = dlopen(named != nullptr ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    find(all_reduce_, "ncclAllReduce");
    find(send_, "ncclSend");
    find(receive_, "ncclRecv");
    find(group_start_, "ncclGroupStart");
    find(group_end_, "ncclGroupEnd");
    int (*unique_id)(UniqueId*) = nullptr;
    find(unique_id, "ncclGetUniqueId");
    int (*init)(Communicator*, int, UniqueId, int, Config*) = nullptr;
    find(init, "ncclCommInitRankConfig");
    UniqueId id{};
    Config config;
    check(unique_id(&id), "ncclGetUniqueId");
    check(init(&communicator_, 1, id, 0, &config), "ncclCommInitRankConfig");
  }
  ~OneRank() {
    int (*destroy)(Communicator) = nullptr;
    find(destroy, "ncclCommDestroy");
    destroy(communicator_);
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;

  void allreduce(void* data, std::size_t count, Stream stream) const {
    check(all_reduce_(data, data, count, float32, sum, communicator_, stream), "ncclAllReduce");
  }
  // To itself: what goes through NCCL's group and its launch even at one rank.
  void alltoall(const void* from, void* to, std::size_t count, Stream stream) const {
    check(group_start_(), "ncclGroupStart");
    check(send_(from, count, float32, 0, communicator_, stream), "ncclSend");
    check(receive_(to, count, float32, 0, communicator_, stream), "ncclRecv");
    check(group_end_(), "ncclGroupEnd");
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string(name) + " is missing");
  }
  static void check(int result, const char* what) {
    if (result != 0) throw std::runtime_error(std::string(what) + ": " + std::to_string(result));
  }

  void* library_ = nullptr;
  Communicator communicator_ = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*send_)(const void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*receive_)(void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
};

}  // namespace raw_nccl
