#include "backend/buffer_pool.h"

#include <algorithm>
#include <bit>

namespace rueda {

PooledBuffer BufferPool::take(std::size_t bytes) {
  const auto fits = [bytes](const PooledBuffer& buffer) { return buffer.capacity >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found != free_.end()) {
    PooledBuffer buffer = std::move(*found);
    free_.erase(found);
    return buffer;
  }
  // Powers of two, so that batches of similar size share buffers; unused pages cost nothing.
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  auto memory = allocate_(capacity);
  if (!memory) throw std::bad_alloc();
  return {std::move(memory), capacity};
}

void BufferPool::give_back(PooledBuffer buffer) {
  if (!buffer.bytes) return;
  const auto larger = [&](const PooledBuffer& other) { return other.capacity > buffer.capacity; };
  free_.insert(std::find_if(free_.begin(), free_.end(), larger), std::move(buffer));
  if (free_.size() > kept_) free_.erase(free_.begin());
}

}  // namespace rueda
