#include "backend/gpu/gpu_event.h"

#include <cstdint>
#include <utility>

namespace rueda {

Expected<std::shared_ptr<GpuEvent>> GpuEvent::after(const CudaStream& stream) {
  auto event = CudaEvent::create(stream.device());
  if (!event) return event.status();
  if (Status status = event->record(stream); !status) return status;
  return std::make_shared<GpuEvent>(std::move(event).value());
}

Status GpuEvent::hold_back(void* stream) const {
  const CudaStream waiting =
      CudaStream::borrow(event_.device(), reinterpret_cast<std::uintptr_t>(stream));
  return waiting.wait_for(event_);
}

}  // namespace rueda
