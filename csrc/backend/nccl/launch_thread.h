// The thread that calls NCCL for one communicator. A blocking communicator does NCCL's work in the
// calling thread; a nonblocking one makes NCCL start and join a thread for each group of calls
// (ncclGroupEndInternal, 2.27 to 2.30). Each communicator has its own launch thread, because a call
// may wait for the same call on other ranks and must not delay another communicator's calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "core/clock.h"
#include "core/status.h"
#include "cuda/device.h"

namespace rueda {

class LaunchThread {
 public:
  // Receives whether the device could be made current; it stays current for the thread's lifetime.
  using Job = std::function<void(const Status& current)>;

  LaunchThread() = default;
  // Waits for the job in progress.
  ~LaunchThread() { stop(); }
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  // ErrorCode::internal if the system has no more threads.
  [[nodiscard]] Status start(DeviceReference device);
  // The last job has returned, and everything it wrote is visible.
  [[nodiscard]] bool is_idle() const { return word_.load(std::memory_order_acquire) == idle; }
  // Only while it is idle.
  void post(Job job);
  // False at the deadline; nullopt means no deadline.
  bool wait_until_idle(std::optional<Time> deadline) const;
  // Waits for the job in progress.
  void stop();

 private:
  static constexpr std::uint32_t idle = 0;
  static constexpr std::uint32_t busy = 1;
  static constexpr std::uint32_t stopped = 2;

  void run(const DeviceReference& device);
  [[nodiscard]] bool await_job();

  mutable std::atomic<std::uint32_t> word_{idle};
  mutable std::atomic<int> sleepers_{0};  // on the word
  Job job_;                               // written while idle, read while busy
  std::thread thread_;
};

}  // namespace rueda
