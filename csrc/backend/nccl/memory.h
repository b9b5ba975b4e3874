// Device memory allocated by NCCL. Once registered, other GPUs and the switch between them reach it
// directly; windows require it.
#pragma once

#include <cstddef>
#include <utility>

#include "backend/nccl/library.h"
#include "core/status.h"
#include "cuda/device.h"
#include "cuda/owned_memory.h"

namespace rueda {

class NcclHeap {
 public:
  NcclHeap() = default;
  NcclHeap(const NcclLibrary& library, DeviceReference device)
      : library_(&library), device_(std::move(device)) {}

  [[nodiscard]] Expected<std::byte*> allocate(std::size_t bytes) const;
  void free(std::byte* memory) const;

 private:
  const NcclLibrary* library_ = nullptr;
  DeviceReference device_;
};
//     auto memory = NcclMemory::allocate({library, device}, bytes);
using NcclMemory = OwnedMemory<NcclHeap>;

}  // namespace rueda
