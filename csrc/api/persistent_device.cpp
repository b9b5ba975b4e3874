// Persistent all-reductions on GPUs: enqueued by the calling thread on a stream of its own.
#include <utility>

#include "api/persistent_run.h"
#include "backend/device_backend.h"

namespace rueda {

namespace {

class DeviceRun final : public PersistentRun {
 public:
  DeviceRun(const PersistentTensor& tensor, std::shared_ptr<DeviceReduction> reduction)
      : life_(tensor.engine, tensor.options.name),
        stream_(tensor.input.stream),
        reduction_(std::move(reduction)) {}

  void start(std::optional<void*> stream) override {
    life_.begin();
    if (Status status = reduction_->start(stream.value_or(stream_)); !status) fail(status);
  }
  // The stream does the rest.
  bool done() override { return wait_until(std::nullopt); }
  bool wait_until(std::optional<Time>) override {
    life_.end();
    life_.fail_if_broken();
    if (Status status = reduction_->check(); !status) fail(status);
    return true;
  }

 private:
  [[noreturn]] void fail(const Status& status) {
    life_.end();
    life_.fail_if_broken();  // whose error it was in the first place
    // The end of the process set is no failure.
    if (status.code() == ErrorCode::shutdown) throw ShutdownError(status.to_string());
    life_.give_up(status);
  }

  PersistentLife life_;  // the engine outlives what it has made
  void* const stream_;
  const std::shared_ptr<DeviceReduction> reduction_;
};

}  // namespace

std::unique_ptr<PersistentRun> make_device_run(PersistentTensor tensor,
                                               std::shared_ptr<DeviceReduction> reduction) {
  return std::make_unique<DeviceRun>(tensor, std::move(reduction));
}

}  // namespace rueda
