// A GPU in its primary context, which torch and the CUDA runtime use too, so that memory, streams
// and events can be shared with them.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"
#include "cuda/driver.h"
#include "cuda/handles.h"

namespace rueda {

struct DeviceFacts {
  int ordinal = 0;
  std::string name;
  std::string pci_bus_id;      // shows whether two processes use the same GPU
  int compute_capability = 0;  // 90 for sm_90
  std::size_t memory_bytes = 0;
  bool has_memory_pools = false;  // stream-ordered allocation is supported
};

class CudaDevice {
 public:
  // Retains the primary context, creating it if necessary. Fails with invalid_argument if there is
  // no such device, with the number of devices.
  [[nodiscard]] static Expected<std::shared_ptr<const CudaDevice>> open(const CudaDriver& driver,
                                                                        int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] const CudaDriver& driver() const { return driver_; }
  [[nodiscard]] const DriverTable& functions() const { return driver_.functions(); }
  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }
  [[nodiscard]] ContextHandle context() const { return context_; }
  // Names the device in the message.
  [[nodiscard]] Status check(int code, std::string_view what) const;

  // --- Unused events for reuse, since creating and destroying an event costs more than recording
  // it. Waits for an earlier recording are not affected. Thread-safe. Null if there is none.
  [[nodiscard]] EventHandle spare_event() const;
  void give_back(EventHandle event) const;

 private:
  CudaDevice(const CudaDriver& driver, DeviceFacts facts, ContextHandle context);

  const CudaDriver& driver_;
  DeviceFacts facts_;
  ContextHandle context_;
  mutable std::mutex mutex_;
  mutable std::vector<EventHandle> spare_events_;
};

// Held by streams, events and memory, so that their device outlives them.
using DeviceReference = std::shared_ptr<const CudaDevice>;

// What the driver will be called for.
enum class DriverUse {
  any,      // also calls that are forbidden during a stream capture, even another thread's (torch's
            // capture mode forbids allocating and querying events); keeps captures intact
  enqueue,  // recording an event, waiting for one in a stream, launching a kernel
};

// Makes a device the calling thread's current one during this object's lifetime. Free if nested in
// another one for the same device; otherwise two driver calls, and two more for DriverUse::any.
// Everything in this layer does so itself. NCCL calls must be made inside one, and callers that
// make many calls should put one around all of them.
class CurrentDevice {
 public:
  explicit CurrentDevice(const CudaDevice& device, DriverUse use = DriverUse::any);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  [[nodiscard]] bool is_nested() const { return outer_ != nullptr && &outer_->device_ == &device_; }

  const CudaDevice& device_;
  const CurrentDevice* const outer_;  // the thread's previous one
  Status status_;
  bool pushed_ = false;
  bool is_relaxed_ = false;   // here or in an outer one
  bool has_relaxed_ = false;  // here
  int capture_mode_ = 0;      // before that
};

}  // namespace rueda
