// Memory of a GPU that the engine has allocated for a result whose size only the ranks together
// know.
#pragma once

#include <cstddef>
#include <memory>

#include "core/status.h"

namespace rueda {

// When the last reference to the memory goes, what was enqueued for the result itself, and what was
// enqueued on streams up to their release(), is still done; nothing else may use it by then.
class DeviceResult {
 public:
  virtual ~DeviceResult() = default;
  // What `stream`, of the same device, has enqueued so far uses the memory, and nothing that it
  // enqueues later does. Does not wait. Any thread, any number of streams.
  virtual Status release(void* stream) = 0;
};

// As the memory that it belongs to: so it travels wherever a result does.
[[nodiscard]] std::shared_ptr<std::byte[]> memory_of(std::shared_ptr<DeviceResult> result,
                                                     std::byte* data);
// Null for other memory.
[[nodiscard]] DeviceResult* device_result_of(const std::shared_ptr<std::byte[]>& memory);

}  // namespace rueda
