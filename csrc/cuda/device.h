// A GPU in its primary context, which torch and the CUDA runtime use too: memory, streams and
// events are theirs and ours alike.
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
  std::string pci_bus_id;      // tells whether two processes are on the same GPU
  int compute_capability = 0;  // 90 for sm_90
  std::size_t memory_bytes = 0;
  bool has_memory_pools = false;  // memory can be allocated and freed in a stream's order
};

class CudaDevice {
 public:
  // Retains the primary context, which is made if nobody has one yet. Fails with invalid_argument
  // where there is no such device, naming how many there are.
  [[nodiscard]] static Expected<std::shared_ptr<const CudaDevice>> open(const CudaDriver& driver,
                                                                        int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] const CudaDriver& driver() const { return driver_; }
  [[nodiscard]] const DriverTable& functions() const { return driver_.functions(); }
  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }
  [[nodiscard]] ContextHandle context() const { return context_; }
  // With the device in the message.
  [[nodiscard]] Status check(int code, std::string_view what) const;

  // --- Events that nobody uses any more, to be recorded anew: to make one and to destroy it costs
  // more than to record it. Whoever waits for what was recorded before is not disturbed. Any
  // thread. Null where there is none.
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

// What streams, events and memory hold on to: their device outlives them.
using DeviceReference = std::shared_ptr<const CudaDevice>;

// What the driver is going to be called for.
enum class DriverUse {
  any,      // also what a capture that some thread has begun forbids (torch captures in a mode in
            // which no thread may allocate memory or look at events): kept from spoiling it
  enqueue,  // recording an event, waiting for one in a stream, launching a kernel
};

// Makes a device the calling thread's current one for as long as this lives. Within another one of
// the same device it costs nothing; else two calls of the driver, and two more for any use.
// Everything in this layer does so itself; calls to NCCL need it around them, and who calls much
// does well to have one around all.
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
  const CurrentDevice* const outer_;  // the thread's before this one
  Status status_;
  bool pushed_ = false;
  bool is_relaxed_ = false;   // here or further out
  bool has_relaxed_ = false;  // here
  int capture_mode_ = 0;      // before that
};

}  // namespace rueda
