// Memory owned by C++ that Python reads through the buffer protocol.
#pragma once

#include <cstddef>
#include <memory>

#include "rueda/types.h"

namespace rueda::bindings {

// Lives as long as any array over it: arrays hold the Python object, which holds `bytes`.
struct Memory {
  std::shared_ptr<std::byte[]> bytes;
  std::size_t size = 0;
  int device = host_device;
};

}  // namespace rueda::bindings
