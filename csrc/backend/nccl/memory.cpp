#include "backend/nccl/memory.h"

#include <utility>

#include "core/strings.h"

namespace rueda {

Expected<NcclMemory> NcclMemory::allocate(const NcclLibrary& library, DeviceReference device,
                                          std::size_t bytes) {
  const nccl::Functions& functions = library.functions();
  if (functions.mem_alloc == nullptr || functions.mem_free == nullptr) {
    return Status(ErrorCode::unsupported,
                  str("NCCL ", nccl_version_text(library.version()), " has no ncclMemAlloc"));
  }
  NcclMemory memory;
  if (bytes == 0) return memory;
  const CurrentDevice current(*device);
  if (!current.status()) return current.status();
  void* address = nullptr;
  if (Status status = library.check(functions.mem_alloc(&address, bytes),
                                    str("allocating ", bytes, " bytes (ncclMemAlloc)"));
      !status) {
    return status;
  }
  memory.library_ = &library;
  memory.device_ = std::move(device);
  memory.data_ = static_cast<std::byte*>(address);
  memory.size_ = bytes;
  return memory;
}

NcclMemory::NcclMemory(NcclMemory&& other) noexcept
    : library_(other.library_),
      device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

NcclMemory& NcclMemory::operator=(NcclMemory&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

NcclMemory::~NcclMemory() {
  if (data_ == nullptr) return;
  const CurrentDevice current(*device_);
  library_->functions().mem_free(data_);
}

}  // namespace rueda
