// Device memory as NCCL allocates it: other GPUs and the switch between them reach it directly once
// it is registered, and windows need it.
#pragma once

#include <cstddef>

#include "backend/nccl/library.h"
#include "core/status.h"
#include "cuda/device.h"

namespace rueda {

class NcclMemory {
 public:
  // ErrorCode::unsupported where this NCCL does not offer it (before 2.19): DeviceMemory serves
  // then. 0 bytes are no memory.
  [[nodiscard]] static Expected<NcclMemory> allocate(const NcclLibrary& library,
                                                     DeviceReference device, std::size_t bytes);
  NcclMemory() = default;
  NcclMemory(NcclMemory&& other) noexcept;
  NcclMemory& operator=(NcclMemory&& other) noexcept;
  ~NcclMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  const NcclLibrary* library_ = nullptr;
  DeviceReference device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rueda
