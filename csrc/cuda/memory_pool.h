// GPU memory that is allocated and freed in stream order: neither call waits for anything, and
// freed memory is reused.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/handles.h"
#include "cuda/stream.h"

namespace rueda {

class MemoryPool {
 public:
  // Keeps up to `kept_bytes` of unused memory; the rest returns to the driver at the next
  // synchronisation with the GPU. Only for devices whose facts say that they have pools.
  [[nodiscard]] static Expected<MemoryPool> create(DeviceReference device, std::size_t kept_bytes);
  MemoryPool(MemoryPool&& other) noexcept;
  MemoryPool& operator=(MemoryPool&& other) noexcept;
  // Memory that is still allocated stays valid until it is freed.
  ~MemoryPool();

  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // For what `stream` enqueues from now on, and streams that wait for that. `bytes` must not be 0.
  [[nodiscard]] Expected<std::byte*> allocate(const CudaStream& stream, std::size_t bytes) const;
  // Takes effect after what `stream` has enqueued so far; no stream may use the memory later.
  [[nodiscard]] Status free(const CudaStream& stream, std::byte* memory) const;

 private:
  MemoryPool(DeviceReference device, MemoryPoolHandle handle);

  DeviceReference device_;
  MemoryPoolHandle handle_ = nullptr;
};

}  // namespace rueda
