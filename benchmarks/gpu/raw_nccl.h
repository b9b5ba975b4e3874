// NCCL's own functions and nothing between them and the caller, for measurements beside them.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

namespace raw_nccl {

using Communicator = void*;
using Stream = void*;
inline constexpr int float32 = 7;      // of ncclDataType_t
inline constexpr int sum = 0;          // of ncclRedOp_t
inline constexpr int in_progress = 7;  // of ncclResult_t

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

// A communicator of one rank. Of the library that RUEDA_NCCL_LIBRARY names, else of libnccl.so.2.
// `blocking`: calls return once their work is in the stream. Otherwise NCCL hands it to a thread
// that it makes for it, and each call here waits until that is over.
class OneRank {
 public:
  explicit OneRank(bool blocking = true) : blocking_(blocking) {
    const char* named = std::getenv("RUEDA_NCCL_LIBRARY");
    library_ = dlopen(named != nullptr ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    find(all_reduce_, "ncclAllReduce");
    find(send_, "ncclSend");
    find(receive_, "ncclRecv");
    find(group_start_, "ncclGroupStart");
    find(group_end_, "ncclGroupEnd");
    find(async_error_, "ncclCommGetAsyncError");
    int (*unique_id)(UniqueId*) = nullptr;
    find(unique_id, "ncclGetUniqueId");
    int (*init)(Communicator*, int, UniqueId, int, Config*) = nullptr;
    find(init, "ncclCommInitRankConfig");
    UniqueId id{};
    Config config;
    config.blocking = blocking_ ? 1 : 0;
    check(unique_id(&id), "ncclGetUniqueId");
    finish(init(&communicator_, 1, id, 0, &config), "ncclCommInitRankConfig");
  }
  ~OneRank() {
    int (*destroy)(Communicator) = nullptr;
    find(destroy, "ncclCommDestroy");
    destroy(communicator_);
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;

  void allreduce(void* data, std::size_t count, Stream stream) const {
    finish(all_reduce_(data, data, count, float32, sum, communicator_, stream), "ncclAllReduce");
  }
  // To itself: what goes through NCCL's group and its launch even at one rank.
  void alltoall(const void* from, void* to, std::size_t count, Stream stream) const {
    check(group_start_(), "ncclGroupStart");
    begin(send_(from, count, float32, 0, communicator_, stream), "ncclSend");
    begin(receive_(to, count, float32, 0, communicator_, stream), "ncclRecv");
    finish(group_end_(), "ncclGroupEnd");
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string(name) + " is missing");
  }
  // Of a call whose group has not ended.
  static void begin(int result, const char* what) {
    if (result != in_progress) check(result, what);
  }
  // Waits until NCCL's thread has done what was called for.
  void finish(int result, const char* what) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!blocking_ && (result == 0 || result == in_progress)) {
      int state = 0;
      check(async_error_(communicator_, &state), "ncclCommGetAsyncError");
      if (state != in_progress) return check(state, what);
      std::this_thread::yield();  // to NCCL's thread
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error(std::string(what) + " is still in progress after 30 s");
    }
    check(result, what);
  }
  static void check(int result, const char* what) {
    if (result != 0) throw std::runtime_error(std::string(what) + ": " + std::to_string(result));
  }

  const bool blocking_;
  void* library_ = nullptr;
  Communicator communicator_ = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*send_)(const void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*receive_)(void*, std::size_t, int, int, Communicator, Stream) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
  int (*async_error_)(Communicator, int*) = nullptr;
};

}  // namespace raw_nccl
