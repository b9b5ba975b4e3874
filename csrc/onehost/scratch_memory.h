// Memory private to this process, reused by one collective after the other: touching fresh memory
// costs more than most collectives do.
#pragma once

#include <cstddef>
#include <memory>

namespace rueda {

class ScratchMemory {
 public:
  // Contents are undefined. Invalidates what was taken before if that was smaller.
  [[nodiscard]] std::byte* take(std::size_t bytes) {
    if (bytes > bytes_) grow(bytes);
    return memory_.get();
  }

 private:
  // Frees the old memory first, so that there are never two.
  void grow(std::size_t bytes) {
    bytes_ = 0;
    memory_.reset();
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace rueda
