// Fusion buffers and scratch memory, kept across batches so that the steady state allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace rueda {

inline constexpr std::size_t buffer_alignment = 64;

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;

// Uninitialised; at least one byte, so that the pointer is never null. Throws std::bad_alloc.
[[nodiscard]] inline AlignedBytes allocate_aligned(std::size_t bytes) {
  const std::size_t rounded = (bytes / buffer_alignment + 1) * buffer_alignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(buffer_alignment, rounded));
  if (memory == nullptr) throw std::bad_alloc();
  return AlignedBytes(memory);
}

struct PooledBuffer {
  std::shared_ptr<std::byte[]> bytes;
  std::size_t capacity = 0;
};

class BufferPool {
 public:
  // Returns null or throws std::bad_alloc when out of memory.
  using Allocate = std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)>;

  // Keeps up to `kept` unused buffers.
  explicit BufferPool(std::size_t kept, Allocate allocate = allocate_aligned)
      : kept_(kept), allocate_(std::move(allocate)) {}

  // Returns the smallest free buffer that is large enough, or a new one. Throws std::bad_alloc.
  [[nodiscard]] PooledBuffer take(std::size_t bytes);
  void give_back(PooledBuffer buffer);

 private:
  std::size_t kept_;
  Allocate allocate_;
  std::vector<PooledBuffer> free_;  // by capacity
};

}  // namespace rueda
