// Memory of a GPU, memory of the host that a GPU reaches at full speed, and copies between them.
//
// Pointers to a GPU's memory are ordinary pointers that the host must not read or write through.
// All copies are asynchronous: both sides must stay valid until the stream has done them.
#pragma once

#include <cstddef>
#include <span>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/stream.h"

namespace rueda {

// Aligned to 256 bytes. Allocating and freeing wait for all of the GPU's work: not for every step,
// and only what no stream uses any more may be freed.
class DeviceMemory {
 public:
  // 0 bytes are no memory, and no error.
  [[nodiscard]] static Expected<DeviceMemory> allocate(DeviceReference device, std::size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  DeviceReference device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Host memory that copy engines reach directly, in every context of the process, and that kernels
// see under the same address.
class PinnedMemory {
 public:
  [[nodiscard]] static Expected<PinnedMemory> allocate(DeviceReference device, std::size_t bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  DeviceReference device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Pins memory that exists already (Rueda's shared memory, say) for as long as this lives. Pages
// that it shares with other registered memory are refused by the driver.
class HostRegistration {
 public:
  [[nodiscard]] static Expected<HostRegistration> pin(DeviceReference device,
                                                      std::span<std::byte> memory);
  HostRegistration() = default;
  HostRegistration(HostRegistration&& other) noexcept;
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration();

 private:
  DeviceReference device_;
  std::byte* data_ = nullptr;
};

// Copies on `stream`. From and to ordinary host memory the call may block; pinned memory does not.
// 0 bytes do nothing.
[[nodiscard]] Status copy_to_device(const CudaStream& stream, std::byte* device_memory,
                                    const std::byte* host_memory, std::size_t bytes);
[[nodiscard]] Status copy_to_host(const CudaStream& stream, std::byte* host_memory,
                                  const std::byte* device_memory, std::size_t bytes);
[[nodiscard]] Status copy_on_device(const CudaStream& stream, std::byte* to, const std::byte* from,
                                    std::size_t bytes);
[[nodiscard]] Status fill_bytes(const CudaStream& stream, std::byte* device_memory, std::byte value,
                                std::size_t bytes);

}  // namespace rueda
