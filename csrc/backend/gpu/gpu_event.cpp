#include "backend/gpu/gpu_event.h"

#include <cstdint>
#include <utility>

namespace rueda {

Expected<std::shared_ptr<GpuEvent>> GpuEvent::after(const CudaStream& stream) {
  auto event = CudaEvent::after(stream);
  if (!event) return event.status();
  return std::make_shared<GpuEvent>(std::move(event).value());
}

Expected<bool> GpuEvent::reached() const {
  if (failed_.load(std::memory_order_acquire)) return failure_;
  return event_.is_done();
}

bool GpuEvent::is_over() const {
  if (failed_.load(std::memory_order_acquire)) return ended_.load(std::memory_order_acquire);
  const auto reached = event_.is_done();
  return reached && *reached;
}

void GpuEvent::fail(const Status& reason) {
  failure_ = reason;
  failed_.store(true, std::memory_order_release);
}

Status GpuEvent::make_stream_wait(void* stream) const {
  if (failed_.load(std::memory_order_acquire)) return failure_;
  const CudaStream waiting =
      CudaStream::borrow(event_.device(), reinterpret_cast<std::uintptr_t>(stream));
  return waiting.wait_for(event_);
}

}  // namespace rueda
