// Streams and events: the order in which a GPU does things, which the host arranges but never waits
// for unless it must.
#pragma once

#include <cstdint>

#include "core/clock.h"
#include "core/status.h"
#include "cuda/device.h"
#include "cuda/handles.h"

namespace rueda {

class CudaEvent;

class CudaStream {
 public:
  // Of our own: of the device's highest priority, and without waiting for the default stream.
  [[nodiscard]] static Expected<CudaStream> create(DeviceReference device);
  // Somebody else's, as an integer (torch's stream.cuda_stream; 0 and 1 are the default stream, 2
  // is another one in each thread). It is not destroyed here and must outlive its uses.
  [[nodiscard]] static CudaStream borrow(DeviceReference device, std::uintptr_t handle);

  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  // What has been enqueued is still done.
  ~CudaStream();

  [[nodiscard]] StreamHandle handle() const { return handle_; }
  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // What is enqueued from now on waits for what was recorded in `event` last. The event may be of
  // another device. The host does not wait.
  [[nodiscard]] Status wait_for(const CudaEvent& event) const;
  // Whether all that was enqueued is done; an error where some of it failed.
  [[nodiscard]] Expected<bool> is_idle() const;
  // Blocks the calling thread until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_idle(Time deadline) const;
  // Whether a CUDA graph is being captured on it: asking whether it is idle, and allocating, would
  // spoil the capture.
  [[nodiscard]] Expected<bool> is_capturing() const;

 private:
  CudaStream(DeviceReference device, StreamHandle handle, bool owned);

  DeviceReference device_;
  StreamHandle handle_ = nullptr;
  bool owned_ = false;
};

// A point in a stream. It takes no time stamps, which makes it cheap.
class CudaEvent {
 public:
  [[nodiscard]] static Expected<CudaEvent> create(DeviceReference device);
  // After what `stream` has enqueued so far. Mostly one that has been used before.
  [[nodiscard]] static Expected<CudaEvent> after(const CudaStream& stream);
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;
  ~CudaEvent();

  [[nodiscard]] EventHandle handle() const { return handle_; }
  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // Moves this event to after what `stream`, of the same device, has enqueued so far.
  [[nodiscard]] Status record(const CudaStream& stream) const;
  // Whether what was recorded is done; an event that never was, is. An error where it failed.
  [[nodiscard]] Expected<bool> is_done() const;
  // Blocks the calling thread until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_done(Time deadline) const;

 private:
  CudaEvent(DeviceReference device, EventHandle handle);

  DeviceReference device_;
  EventHandle handle_ = nullptr;
};

}  // namespace rueda
