// Starts threads; the system may refuse.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "core/status.h"
#include "core/strings.h"

namespace rueda {

// The error if a limit is reached: of processes, which include threads, or of memory for stacks.
[[nodiscard]] inline Status no_thread(const std::system_error& error) {
  return {ErrorCode::initialization,
          str("cannot start a thread: ", error.code().message(),
              "; raise the limit of processes (ulimit -u) or of virtual memory (ulimit -v), or the "
              "container's pids limit")};
}

// Starts the thread in `thread`.
template <typename Function>
[[nodiscard]] Status start_thread(std::thread& thread, Function&& function) {
  try {
    thread = std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    return no_thread(error);
  }
  return {};
}

}  // namespace rueda
