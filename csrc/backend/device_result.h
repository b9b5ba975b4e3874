// GPU memory that the engine allocates for a result whose size only the ranks together know.
#pragma once

#include <cstddef>
#include <memory>

#include "core/status.h"

namespace rueda {

// The memory may be dropped while work on it is still queued: what was enqueued for the result
// itself, and on streams before their release(), still completes. Nothing else may use it by then.
class DeviceResult {
 public:
  virtual ~DeviceResult() = default;
  // `stream`, on the same device, uses the memory up to what it has enqueued so far, and not later.
  // Does not wait. Any thread, any number of streams.
  virtual Status release(void* stream) = 0;
};

// Wraps the result as the memory it belongs to, so that it goes wherever a result goes.
[[nodiscard]] std::shared_ptr<std::byte[]> memory_of(std::shared_ptr<DeviceResult> result,
                                                     std::byte* data);
// Null for any other memory.
[[nodiscard]] DeviceResult* device_result_of(const std::shared_ptr<std::byte[]>& memory);

}  // namespace rueda
