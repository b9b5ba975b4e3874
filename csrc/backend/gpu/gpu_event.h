// A point in a stream of a CUDA device.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "backend/device_backend.h"
#include "cuda/stream.h"

namespace rueda {

class GpuEvent final : public DeviceEvent {
 public:
  // Follows what `stream` has enqueued so far.
  [[nodiscard]] static Expected<std::shared_ptr<GpuEvent>> after(const CudaStream& stream);
  explicit GpuEvent(CudaEvent event) : event_(std::move(event)) {}

  Status make_stream_wait(void* stream) const override;
  [[nodiscard]] Expected<bool> reached() const override;
  [[nodiscard]] bool is_over() const override;

  // The work before the event is being given up for `reason`; later queries return it.
  void fail(const Status& reason);
  // After fail(): the work has ended.
  void end() { ended_.store(true, std::memory_order_release); }

  [[nodiscard]] const CudaEvent& event() const { return event_; }

 private:
  CudaEvent event_;
  Status failure_;  // valid once `failed_` is set
  std::atomic<bool> failed_{false};
  std::atomic<bool> ended_{false};
};

}  // namespace rueda
