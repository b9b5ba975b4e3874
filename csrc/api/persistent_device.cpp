// Persistent allreduces on GPUs: enqueued by the calling thread on a stream of its own.
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "api/persistent_kinds.h"
#include "backend/device_backend.h"

namespace rueda {

namespace {

constexpr std::uintptr_t stream_of_thread = 2;  // CUDA's number for it
constexpr auto max_spin = std::chrono::microseconds(200);
constexpr auto pause = std::chrono::microseconds(50);

class DeviceRun final : public PersistentRun {
 public:
  DeviceRun(const PersistentTensor& tensor, std::shared_ptr<DeviceReduction> reduction)
      : life_(tensor), stream_(tensor.input.stream), reduction_(std::move(reduction)) {
    life_.observe_runs();  // the reduction counts transfers
  }

  void begin(std::optional<void*> stream) override {
    void* const on = stream.value_or(stream_);
    // Which stream that is depends on the thread, and another thread calls NCCL.
    if (reinterpret_cast<std::uintptr_t>(on) == stream_of_thread) {
      throw InvalidArgumentError(
          "a persistent allreduce cannot start on cudaStreamPerThread: use a stream of your own, "
          "or the default one");
    }
    life_.begin();
    if (Status status = reduction_->start(on); !status.ok()) fail(status);
  }
  bool start_until(std::optional<Time> deadline) override {
    const Time begin = Clock::now();
    for (;;) {
      const auto enqueued = reduction_->advance();
      if (!enqueued) fail(enqueued.status());
      if (*enqueued) return true;
      const Time now = Clock::now();
      if (deadline && now >= *deadline) return false;
      // A sleep takes some 60 us, however short the requested time; a call of NCCL takes less.
      if (now - begin < max_spin) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(pause);
      }
    }
  }
  // The stream does the rest.
  bool done() override { return wait_until(Clock::now()); }
  bool wait_until(std::optional<Time> deadline) override {
    if (!start_until(deadline)) return false;
    life_.end();
    life_.fail_if_broken();
    if (Status status = reduction_->check(); !status.ok()) fail(status);
    return true;
  }

 private:
  [[noreturn]] void fail(const Status& status) {
    life_.end(status);
    life_.fail_if_broken();  // that is then the original error
    // The end of the process set is not a failure.
    if (status.code() == ErrorCode::shutdown) throw ShutdownError(status.to_string());
    life_.give_up(status);
  }

  PersistentLife life_;  // the runtime outlives what it has created
  void* const stream_;
  const std::shared_ptr<DeviceReduction> reduction_;
};

}  // namespace

OwnedPersistentRun make_device_run(PersistentTensor tensor,
                                   std::shared_ptr<DeviceReduction> reduction) {
  return OwnedPersistentRun(new DeviceRun(tensor, std::move(reduction)));
}

}  // namespace rueda
