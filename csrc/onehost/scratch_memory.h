// Memory of this process alone for one collective after the other: what is fresh from the system
// costs more to touch than most collectives take.
#pragma once

#include <cstddef>
#include <memory>

namespace rueda {

class ScratchMemory {
 public:
  // Its content is undefined. What was taken before is no longer valid where it had fewer bytes.
  [[nodiscard]] std::byte* take(std::size_t bytes) {
    if (bytes > bytes_) grow(bytes);
    return memory_.get();
  }

 private:
  // The old memory is freed first, so that there are never two.
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
