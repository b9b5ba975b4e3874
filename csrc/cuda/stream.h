// Streams and events: the order of a GPU's work, which the host arranges but waits for only if it
// must.
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
  // A stream of our own: of the device's highest priority, and not waiting for the default stream.
  [[nodiscard]] static Expected<CudaStream> create(DeviceReference device);
  // A foreign stream, as an integer (torch's stream.cuda_stream; 0 and 1 are the default stream, 2
  // is the per-thread one). Not destroyed here; must outlive its uses.
  [[nodiscard]] static CudaStream borrow(DeviceReference device, std::uintptr_t handle);

  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  // Enqueued work still completes.
  ~CudaStream();

  [[nodiscard]] StreamHandle handle() const { return handle_; }
  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // Work enqueued from now on waits for what was last recorded in `event`, which may belong to
  // another device. The host does not wait.
  [[nodiscard]] Status wait_for(const CudaEvent& event) const;
  // Whether all enqueued work is done; an error if some of it failed.
  [[nodiscard]] Expected<bool> is_idle() const;
  // Blocks the calling thread until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_idle(Time deadline) const;
  // Whether a CUDA graph is being captured on it. Querying whether it is idle, and allocating
  // memory, would invalidate the capture.
  [[nodiscard]] Expected<bool> is_capturing() const;

 private:
  CudaStream(DeviceReference device, StreamHandle handle, bool owned);

  DeviceReference device_;
  StreamHandle handle_ = nullptr;
  bool owned_ = false;
};

// A point in a stream, without a time stamp, which makes it cheap.
class CudaEvent {
 public:
  [[nodiscard]] static Expected<CudaEvent> create(DeviceReference device);
  // Follows what `stream` has enqueued so far. Usually reuses an event.
  [[nodiscard]] static Expected<CudaEvent> after(const CudaStream& stream);
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;
  ~CudaEvent();

  [[nodiscard]] EventHandle handle() const { return handle_; }
  [[nodiscard]] const DeviceReference& device() const { return device_; }

  // Moves this event behind what `stream`, on the same device, has enqueued so far.
  [[nodiscard]] Status record(const CudaStream& stream) const;
  // Whether what was recorded is done; true if nothing was. An error if it failed.
  [[nodiscard]] Expected<bool> is_done() const;
  // Blocks the calling thread until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_done(Time deadline) const;

 private:
  CudaEvent(DeviceReference device, EventHandle handle);

  DeviceReference device_;
  EventHandle handle_ = nullptr;
};

}  // namespace rueda
