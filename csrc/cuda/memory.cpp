#include "cuda/memory.h"

#include <utility>

#include "core/memory_release.h"
#include "core/strings.h"
#include "cuda/driver_table.h"

namespace rueda {

namespace {

CUdeviceptr address_of(const std::byte* memory) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory));
}

std::string allocation_of(std::size_t bytes, const char* function) {
  return str("allocating ", bytes, " bytes (", function, ")");
}

// Runs `call` unless there is nothing to do, with the stream's device current.
template <class Call>
Status enqueue(const CudaStream& stream, std::size_t bytes, const char* what, const Call& call) {
  if (bytes == 0) return {};
  const CudaDevice& device = *stream.device();
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  return device.check(call(device.functions()), what);
}

}  // namespace

Expected<std::byte*> DeviceHeap::allocate(std::size_t bytes) const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  return allocate_with_release(device_->facts().ordinal, [&]() -> Expected<std::byte*> {
    CUdeviceptr address = 0;
    if (Status status = device_->check(device_->functions().memory_allocate(&address, bytes),
                                       allocation_of(bytes, "cuMemAlloc"));
        !status.ok()) {
      return status;
    }
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  });
}

void DeviceHeap::free(std::byte* memory) const {
  const CurrentDevice current(*device_);
  device_->functions().memory_free(address_of(memory));
}

Expected<std::byte*> PinnedHeap::allocate(std::size_t bytes) const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  void* address = nullptr;
  if (Status status = device_->check(
          device_->functions().host_allocate(&address, bytes, CU_MEMHOSTALLOC_PORTABLE),
          allocation_of(bytes, "cuMemHostAlloc"));
      !status.ok()) {
    return status;
  }
  return static_cast<std::byte*>(address);
}

void PinnedHeap::free(std::byte* memory) const {
  const CurrentDevice current(*device_);
  device_->functions().host_free(memory);
}

Expected<HostRegistration> HostRegistration::pin(DeviceReference device,
                                                 std::span<std::byte> memory) {
  HostRegistration registration;
  if (memory.empty()) return registration;
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  if (Status status = device->check(device->functions().host_register(memory.data(), memory.size(),
                                                                      CU_MEMHOSTREGISTER_PORTABLE),
                                    str("pinning ", memory.size(), " bytes (cuMemHostRegister)"));
      !status.ok()) {
    return status;
  }
  registration.device_ = std::move(device);
  registration.data_ = memory.data();
  return registration;
}

HostRegistration::HostRegistration(HostRegistration&& other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)) {}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

HostRegistration::~HostRegistration() {
  if (data_ == nullptr) return;
  const CurrentDevice current(*device_);
  device_->functions().host_unregister(data_);
}

Status copy_to_device(const CudaStream& stream, std::byte* device_memory,
                      const std::byte* host_memory, std::size_t bytes) {
  return enqueue(stream, bytes, "cuMemcpyHtoDAsync", [&](const DriverTable& functions) {
    return functions.copy_to_device(address_of(device_memory), host_memory, bytes, stream.handle());
  });
}

Status copy_to_host(const CudaStream& stream, std::byte* host_memory,
                    const std::byte* device_memory, std::size_t bytes) {
  return enqueue(stream, bytes, "cuMemcpyDtoHAsync", [&](const DriverTable& functions) {
    return functions.copy_to_host(host_memory, address_of(device_memory), bytes, stream.handle());
  });
}

Status copy_on_device(const CudaStream& stream, std::byte* to, const std::byte* from,
                      std::size_t bytes) {
  return enqueue(stream, bytes, "cuMemcpyDtoDAsync", [&](const DriverTable& functions) {
    return functions.copy_on_device(address_of(to), address_of(from), bytes, stream.handle());
  });
}

Status fill_bytes(const CudaStream& stream, std::byte* device_memory, std::byte value,
                  std::size_t bytes) {
  return enqueue(stream, bytes, "cuMemsetD8Async", [&](const DriverTable& functions) {
    return functions.fill_bytes(address_of(device_memory), static_cast<unsigned char>(value), bytes,
                                stream.handle());
  });
}

}  // namespace rueda
