#include "cuda/memory_pool.h"

#include <cstdint>
#include <utility>

#include "core/memory_release.h"
#include "core/strings.h"
#include "cuda/driver_table.h"

namespace rueda {

MemoryPool::MemoryPool(DeviceReference device, MemoryPoolHandle handle)
    : device_(std::move(device)), handle_(handle) {}

// Not the device's default pool: torch configures that for itself if told to use the driver's
// allocator.
Expected<MemoryPool> MemoryPool::create(DeviceReference device, std::size_t kept_bytes) {
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device->facts().ordinal;
  CUmemoryPool handle = nullptr;
  if (Status status =
          device->check(device->functions().pool_create(&handle, &properties), "cuMemPoolCreate");
      !status.ok()) {
    return status;
  }
  MemoryPool pool(device, handle);  // `current` needs the device, too
  cuuint64_t threshold = kept_bytes;
  const CUresult set =
      device->functions().pool_set_attribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  if (Status status = device->check(set, "cuMemPoolSetAttribute"); !status.ok()) return status;
  // Otherwise the driver may make an allocating stream wait for one that frees, which may be
  // waiting for other ranks: two process sets could wait for each other across ranks.
  int allowed = 0;
  const CUresult forbidden = device->functions().pool_set_attribute(
      handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed);
  if (Status status = device->check(forbidden, "cuMemPoolSetAttribute"); !status.ok())
    return status;
  return pool;
}

MemoryPool::MemoryPool(MemoryPool&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

MemoryPool& MemoryPool::operator=(MemoryPool&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

MemoryPool::~MemoryPool() {
  if (handle_ == nullptr) return;
  const CurrentDevice current(*device_);
  device_->functions().pool_destroy(handle_);
}

Expected<std::byte*> MemoryPool::allocate(const CudaStream& stream, std::size_t bytes) const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  return allocate_with_release(device_->facts().ordinal, [&]() -> Expected<std::byte*> {
    CUdeviceptr address = 0;
    if (Status status = device_->check(
            device_->functions().pool_allocate(&address, bytes, handle_, stream.handle()),
            str("allocating ", bytes, " bytes (cuMemAllocFromPoolAsync)"));
        !status.ok()) {
      return status;
    }
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  });
}

Status MemoryPool::free(const CudaStream& stream, std::byte* memory) const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
  return device_->check(device_->functions().pool_free(address, stream.handle()), "cuMemFreeAsync");
}

}  // namespace rueda
