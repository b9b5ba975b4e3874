// Memory of a GPU, memory of the host that a GPU reaches at full speed, and copies between them.
//
// Pointers to a GPU's memory are ordinary pointers that the host must not read or write through.
// All copies are asynchronous: both sides must stay valid until the stream has done them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/owned_memory.h"
#include "cuda/stream.h"

namespace rueda {

// A GPU's memory, aligned to 256 bytes. Allocating and freeing wait for all of the GPU's work: not
// for every step, and only what no stream uses any more may be freed.
class DeviceHeap {
 public:
  DeviceHeap() = default;
  DeviceHeap(DeviceReference device) : device_(std::move(device)) {}  // NOLINT: stands for it

  [[nodiscard]] Expected<std::byte*> allocate(std::size_t bytes) const;
  void free(std::byte* memory) const;

 private:
  DeviceReference device_;
};
//     auto memory = DeviceMemory::allocate(device, bytes);
using DeviceMemory = OwnedMemory<DeviceHeap>;

// Host memory that copy engines reach directly, in every context of the process, and that kernels
// see under the same address.
class PinnedHeap {
 public:
  PinnedHeap() = default;
  PinnedHeap(DeviceReference device) : device_(std::move(device)) {}  // NOLINT: stands for it

  [[nodiscard]] Expected<std::byte*> allocate(std::size_t bytes) const;
  void free(std::byte* memory) const;

 private:
  DeviceReference device_;
};
using PinnedMemory = OwnedMemory<PinnedHeap>;

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
