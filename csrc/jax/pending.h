// XLA calls whose operations are in progress, and the threads that complete them.
//
// Completing a future runs, in the same thread, whatever XLA computes from it. So a thread that
// learns of finished operations lets another thread listen before it completes a call: a
// computation never delays the completion of other operations.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "jax/call.h"

namespace rueda::jax {

struct Pending {
  const ffi::Api* api;  // XLA's; lives as long as the process
  ffi::Future* future;
  Call call;
  std::vector<Handle> handles;
  bool compares = false;  // the handle compares the ranks' trees; the call is submitted after it
  std::size_t unfinished = 0;  // of the handles

  // Call once all handles are done. May add the call to Completions again.
  void complete() &&;
};

// Completes the future of a call that has nothing pending.
void fail(const ffi::Api& api, ffi::Future* future, ErrorCode code, const std::string& text);

class Completions {
 public:
  // Of this process. Never destroyed, since its threads never end.
  static Completions& instance();

  // Ensures that there is a thread. Throws std::system_error if the system has none left.
  void start();
  // Completes the call's future once its operations are done, with an error if one failed. Call
  // after start().
  void add(Pending pending);

 private:
  void work();
  void hear(const std::vector<std::uint64_t>& tokens);
  void let_another_go_on();
  void add_thread();

  std::mutex mutex_;
  std::condition_variable changed_;
  CompletionQueue queue_;
  // All under the mutex.
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::deque<Pending> done_;
  std::uint64_t next_token_ = 0;
  int threads_ = 0;
  int idle_ = 0;
  bool listening_ = false;
};

}  // namespace rueda::jax
