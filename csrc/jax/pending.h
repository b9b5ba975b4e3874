// Calls of XLA's whose operations are under way, and the threads that complete them.
//
// To complete a future is to run, in the same thread, what XLA computes from it. So whoever has
// heard that operations are done lets another thread listen on before it completes a call: no
// computation keeps the completion of another operation from being heard.
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
  const ffi::Api* api;  // XLA's, which lives as long as the process
  ffi::Future* future;
  Call call;
  std::vector<Handle> handles;
  std::size_t unfinished = 0;  // of the handles

  // All handles are done.
  void complete() const;
};

// Completes the future of a call that nothing is pending of.
void fail(const ffi::Api& api, ffi::Future* future, ErrorCode code, const std::string& text);

class Completions {
 public:
  // Of this process; never destroyed, since its threads are not either.
  static Completions& instance();

  // There is a thread after this. Throws std::system_error where the system has none left.
  void start();
  // Completes the call's future, with an error where an operation has failed. After start().
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
