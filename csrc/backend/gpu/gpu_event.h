// A point in a stream of a CUDA device.
#pragma once

#include <memory>

#include "backend/device_backend.h"
#include "cuda/stream.h"

namespace rueda {

class GpuEvent final : public DeviceEvent {
 public:
  // After what `stream` has enqueued so far.
  [[nodiscard]] static Expected<std::shared_ptr<GpuEvent>> after(const CudaStream& stream);
  explicit GpuEvent(CudaEvent event) : event_(std::move(event)) {}

  Status hold_back(void* stream) const override;
  [[nodiscard]] Expected<bool> reached() const override { return event_.is_done(); }
  [[nodiscard]] const CudaEvent& event() const { return event_; }

 private:
  CudaEvent event_;
};

}  // namespace rueda
