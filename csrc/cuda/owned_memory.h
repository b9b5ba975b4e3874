// Memory with a single owner, from any allocator.
#pragma once

#include <cstddef>
#include <utility>

#include "core/status.h"

namespace rueda {

// `Source` allocates and frees the memory. It is kept as long as the memory, and must be
// default-constructible:
//
//     Expected<std::byte*> allocate(std::size_t bytes) const;
//     void free(std::byte* memory) const;
template <class Source>
class OwnedMemory {
 public:
  // 0 bytes give no memory and no error.
  [[nodiscard]] static Expected<OwnedMemory> allocate(Source source, std::size_t bytes) {
    OwnedMemory memory;
    if (bytes == 0) return memory;
    const auto data = source.allocate(bytes);
    if (!data) return data.status();
    memory.source_ = std::move(source);
    memory.data_ = *data;
    memory.size_ = bytes;
    return memory;
  }
  OwnedMemory() = default;
  OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OwnedMemory() {
    if (data_ != nullptr) source_.free(data_);
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  void swap(OwnedMemory& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Source source_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rueda
