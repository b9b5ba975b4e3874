// Where results lie whose size only the negotiation tells (allgather, reduce-scatter, alltoall).
//
// The application's own allocator (torch's, say) would have to be called by the progress thread,
// which cannot wait for Python's lock, and its stream is not the one on which a result is written.
// So they come from the driver's stream-ordered allocator, which waits for nothing: memory is
// allocated on the stream that writes the result, and freed, from any thread, on a stream of the
// pool that waits for the writer and for the streams that the application has named
// (DeviceResult::release). That stream is never the writer's own, nor the application's: neither
// communication nor computation waits for memory to be freed, unless the GPU has no other.
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
  // Where the device has no such allocator (some virtual GPUs), results are allocated and freed
  // with cuMemAlloc and cuMemFree, for which the GPU stands still.
  [[nodiscard]] static Expected<std::shared_ptr<ResultPool>> open(const DeviceReference& device);

  // Memory that `writer` fills with what it enqueues from now on. It keeps all that it needs, and
  // may outlive the engine. 0 bytes are a null pointer. Any thread.
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
