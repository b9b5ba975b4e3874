#include "backend/backend.h"

#include "backend/buffer_pool.h"

namespace rueda {

std::shared_ptr<std::byte[]> Backend::allocate(const Lane&, std::size_t bytes) {
  return allocate_aligned(bytes);
}

}  // namespace rueda
