// Memory for results whose size is known only after negotiation (allgather, reduce-scatter,
// alltoall).
//
// The application's own allocator (torch's, for example) would have to be called by the progress
// thread, which cannot wait for the GIL, and would use a stream other than the one that writes the
// result. So results come from the driver's stream-ordered allocator, which waits for nothing.
// Memory is allocated on the stream that writes the result. Any thread may free it, on a stream of
// the pool that waits for the writer and for the streams that the application named
// (DeviceResult::release). That stream is neither the writer's nor the application's, so neither
// communication nor computation waits for memory to be freed, unless the GPU has no other stream.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/memory_pool.h"
#include "cuda/stream.h"

namespace rueda {

class ResultPool : public std::enable_shared_from_this<ResultPool> {
 public:
  // On devices without such an allocator (some virtual GPUs), uses cuMemAlloc and cuMemFree, which
  // stall the GPU.
  [[nodiscard]] static Expected<std::shared_ptr<ResultPool>> open(const DeviceReference& device);

  // Memory that `writer` fills with what it enqueues from now on. It owns all it needs and may
  // outlive the engine. A null pointer for 0 bytes. Thread-safe.
  [[nodiscard]] Expected<std::shared_ptr<std::byte[]>> allocate(
      std::shared_ptr<const CudaStream> writer, std::size_t bytes);

 private:
  class Pooled;
  class Plain;
  ResultPool(DeviceReference device, CudaStream ending);

  DeviceReference device_;
  std::optional<MemoryPool> pool_;
  CudaStream ending_;  // on which memory is freed
};

}  // namespace rueda
