// GPU streams through torch's device-independent interface: nothing of CUDA is linked here, and
// with CPU tensors nothing is asked of it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <concepts>
#include <optional>

#include "rueda/rueda.h"

// Versions of torch in which no device gives native stream handles need CUDA's own headers. The
// first exists only in builds of torch with CUDA, whose CMake package brings in the second.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>

namespace rueda::libtorch::detail {
inline constexpr bool has_cuda_headers = true;
[[nodiscard]] inline void* handle_by_cuda(c10::Stream stream) {
  return c10::cuda::CUDAStream(stream).stream();
}
}  // namespace rueda::libtorch::detail
#else
namespace rueda::libtorch::detail {
inline constexpr bool has_cuda_headers = false;
[[nodiscard]] inline void* handle_by_cuda(c10::Stream /*stream*/) {
  return nullptr;
}
}  // namespace rueda::libtorch::detail
#endif

namespace rueda::libtorch::detail {

using AnyDevice = c10::impl::VirtualGuardImpl;

template <class Device>
concept TellsHandles = requires(const Device& device, c10::Stream stream) {
  { device.getStreamNativeHandle(stream) } -> std::same_as<void*>;
};

// Whether this program can find out on which stream a GPU tensor was made.
inline constexpr bool knows_streams = TellsHandles<AnyDevice> || has_cuda_headers;

// The cudaStream_t. A template, so that members that a version of torch lacks are not looked up.
template <class Device>
[[nodiscard]] void* native_handle(const Device& device, c10::Stream stream) {
  if constexpr (TellsHandles<Device>) {
    return device.getStreamNativeHandle(stream);
  } else {
    return handle_by_cuda(stream);
  }
}

[[nodiscard]] inline void* native_handle(c10::Stream stream) {
  return native_handle(AnyDevice(stream.device_type()), stream);
}

// The calling thread's current stream on a GPU.
[[nodiscard]] inline c10::Stream current_stream(c10::Device device) {
  return AnyDevice(device.type()).getStream(device);
}

// Makes streams wait for the results of one operation on a GPU, and for what copies them to their
// destination. Created when the operation is submitted.
class StreamOrder {
 public:
  explicit StreamOrder(c10::Device device) : submitted_on_(current_stream(device)) {}

  // Call once `handle` is done. The current stream waits; then `bring()` may enqueue on it. The
  // stream that submitted waits for all that, too, because torch gives the memory of freed tensors
  // to what that stream enqueues next. Throws what `handle` and `bring` do.
  template <class Bring>
  void settle(const Handle& handle, Bring&& bring) {
    const c10::Stream current = current_stream(submitted_on_.device());
    handle.wait_on(native_handle(current));
    bring();
    settled_on_ = current;
    settled_.emplace(current.device_type());
    settled_->record(current);
    if (current != submitted_on_) settled_->block(submitted_on_);
  }

  // After settle(): the current stream, perhaps of another thread, also waits.
  void join() {
    const c10::Stream current = current_stream(submitted_on_.device());
    if (current != *settled_on_ && current != submitted_on_) settled_->block(current);
  }

  // Makes a private stream wait for the results of a handle that is done, and returns it: tensors
  // must be kept until it gets there.
  [[nodiscard]] c10::Stream wait_aside(const Handle& handle) const {
    const c10::Device device = submitted_on_.device();
    const c10::Stream stream =
        AnyDevice(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    handle.wait_on(native_handle(stream));
    return stream;
  }

 private:
  c10::Stream submitted_on_;
  std::optional<c10::Stream> settled_on_;
  std::optional<c10::Event> settled_;
};

}  // namespace rueda::libtorch::detail
