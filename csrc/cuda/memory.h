// GPU memory, host memory that a GPU accesses at full speed, and copies between them.
//
// Pointers to GPU memory are ordinary pointers, but the host must not dereference them. All copies
// are asynchronous: both sides must stay valid until the stream has completed them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/owned_memory.h"
#include "cuda/stream.h"

namespace rueda {

// GPU memory, aligned to 256 bytes. Allocating and freeing wait for all of the GPU's work, so do
// not use it in every step. Free only what no stream uses any more.
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

// Host memory that copy engines access directly in every context of the process, and that kernels
// see at the same address.
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

// Pins existing memory (such as Rueda's shared memory) during this object's lifetime. The driver
// refuses pages shared with other registered memory.
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

// Copy on `stream`. With ordinary host memory the call may block; with pinned memory it does not. 0
// bytes do nothing.
[[nodiscard]] Status copy_to_device(const CudaStream& stream, std::byte* device_memory,
                                    const std::byte* host_memory, std::size_t bytes);
[[nodiscard]] Status copy_to_host(const CudaStream& stream, std::byte* host_memory,
                                  const std::byte* device_memory, std::size_t bytes);
[[nodiscard]] Status copy_on_device(const CudaStream& stream, std::byte* to, const std::byte* from,
                                    std::size_t bytes);
[[nodiscard]] Status fill_bytes(const CudaStream& stream, std::byte* device_memory, std::byte value,
                                std::size_t bytes);

}  // namespace rueda
