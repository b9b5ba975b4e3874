// Memory of a GPU that is allocated and freed in the order of streams: neither call waits for
// anything, and what has been freed is given out again.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/handles.h"
#include "cuda/stream.h"

namespace rueda {

class MemoryPool {
 public:
  // Keeps up to `kept_bytes` that are not in use; what is more goes back to the driver when
  // somebody waits for the GPU. Only for devices whose facts say that they have pools.
  [[nodiscard]] static Expected<MemoryPool> create(DeviceReference device, std::size_t kept_bytes);
  MemoryPool(MemoryPool&& other) noexcept;
  MemoryPool& operator=(MemoryPool&& other) noexcept;
  // What is still allocated stays until it is freed.
  ~MemoryPool();

  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // For what `stream` enqueues from now on, and for streams that wait for that. Not of 0 bytes.
  [[nodiscard]] Expected<std::byte*> allocate(const CudaStream& stream, std::size_t bytes) const;
  // After what `stream` has enqueued so far; no stream may use it from then on.
  [[nodiscard]] Status free(const CudaStream& stream, std::byte* memory) const;

 private:
  MemoryPool(DeviceReference device, MemoryPoolHandle handle);

  DeviceReference device_;
  MemoryPoolHandle handle_ = nullptr;
};

}  // namespace rueda
