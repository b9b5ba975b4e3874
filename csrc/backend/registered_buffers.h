// Buffers that the other ranks of this host can read.
#pragma once

#include <cstddef>
#include <memory>

#include "onehost/registered_memory.h"

namespace rueda {

// An Allocate function for BufferPool.
[[nodiscard]] inline std::shared_ptr<std::byte[]> allocate_registered(std::size_t bytes) {
  const auto memory = RegisteredMemory::of_process();
  return memory ? memory.value()->allocate(bytes) : nullptr;
}

}  // namespace rueda
