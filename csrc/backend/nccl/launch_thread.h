// The thread that calls NCCL for one communicator. A communicator that blocks lets NCCL do its work
// in the calling thread, where one that does not block makes NCCL start and join a thread for each
// group of calls (ncclGroupEndInternal, 2.27 to 2.30). A communicator each: a call may wait for the
// same call of other ranks, and must not keep them from another communicator's.
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
  // Given whether the device could be made current, which it is for as long as the thread lives.
  using Job = std::function<void(const Status& current)>;

  LaunchThread() = default;
  // Waits for the job that is under way.
  ~LaunchThread() { stop(); }
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  // ErrorCode::internal where the system has no more threads.
  [[nodiscard]] Status start(DeviceReference device);
  // The last job has returned, and all that it wrote can be read.
  [[nodiscard]] bool is_idle() const { return word_.load(std::memory_order_acquire) == idle; }
  // Only while it is idle.
  void post(Job job);
  // False at the deadline; nothing for no deadline.
  bool wait_until_idle(std::optional<Time> deadline) const;
  // Waits for the job that is under way.
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
