// Host memory through which GPU tensors reach other ranks. If this host's ranks share memory, it is
// registered memory, pinned, in which the host's collectives run without another copy.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "core/status.h"
#include "cuda/memory.h"

namespace rueda {

class StagingMemory {
 public:
  [[nodiscard]] static Expected<StagingMemory> allocate(const DeviceReference& device,
                                                        std::size_t bytes);
  StagingMemory() = default;
  StagingMemory(StagingMemory&&) noexcept = default;
  StagingMemory& operator=(StagingMemory&& other) noexcept {
    std::swap(shared_, other.shared_);
    std::swap(registration_, other.registration_);
    std::swap(pinned_, other.pinned_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  // Unpinned before it is freed (by order of declaration).
  std::shared_ptr<std::byte[]> shared_;
  HostRegistration registration_;
  PinnedMemory pinned_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rueda
