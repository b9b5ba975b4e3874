#include "cuda/device.h"

#include <array>
#include <utility>

#include "core/strings.h"
#include "cuda/driver_table.h"

namespace rueda {

namespace {

constexpr std::size_t max_spare_events = 256;

// Queries attributes until one fails.
class Questions {
 public:
  Questions(const CudaDriver& driver, CUdevice device) : driver_(driver), device_(device) {}

  int operator()(CUdevice_attribute attribute) {
    int value = 0;
    note(driver_.functions().device_attribute(&value, attribute, device_), "cuDeviceGetAttribute");
    return value;
  }
  void note(CUresult result, const char* what) {
    if (status_.ok()) status_ = driver_.check(result, what);
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  CUdevice device_;
  Status status_;
};

Expected<DeviceFacts> facts_of(const CudaDriver& driver, CUdevice device, int ordinal) {
  const DriverTable& functions = driver.functions();
  Questions ask(driver, device);
  DeviceFacts facts;
  facts.ordinal = ordinal;
  std::array<char, 256> text{};
  ask.note(functions.device_name(text.data(), text.size(), device), "cuDeviceGetName");
  facts.name = text.data();
  ask.note(functions.device_pci_bus_id(text.data(), text.size(), device), "cuDeviceGetPCIBusId");
  facts.pci_bus_id = text.data();
  ask.note(functions.device_total_memory(&facts.memory_bytes, device), "cuDeviceTotalMem");
  facts.compute_capability = 10 * ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                             ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.has_memory_pools = ask(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0;
  if (!ask.status().ok()) return ask.status();
  return facts;
}

}  // namespace

Expected<std::shared_ptr<const CudaDevice>> CudaDevice::open(const CudaDriver& driver,
                                                             int ordinal) {
  const auto count = driver.device_count();
  if (!count) return count.status();
  if (ordinal < 0 || ordinal >= count.value()) {
    return Status(ErrorCode::invalid_argument,
                  str("there is no GPU ", ordinal, ": this process has ", count.value(),
                      " (see CUDA_VISIBLE_DEVICES)"));
  }
  CUdevice device{};
  CUcontext context = nullptr;
  if (Status status = driver.check(driver.functions().device_get(&device, ordinal), "cuDeviceGet");
      !status.ok()) {
    return status;
  }
  auto facts = facts_of(driver, device, ordinal);
  if (!facts) return facts.status();
  if (Status status = driver.check(driver.functions().primary_context_retain(&context, device),
                                   "cuDevicePrimaryCtxRetain");
      !status.ok()) {
    return Status(status.code(), str("GPU ", ordinal, " cannot be used")).because(status);
  }
  return std::shared_ptr<const CudaDevice>(new CudaDevice(driver, std::move(*facts), context));
}

CudaDevice::CudaDevice(const CudaDriver& driver, DeviceFacts facts, ContextHandle context)
    : driver_(driver), facts_(std::move(facts)), context_(context) {}

CudaDevice::~CudaDevice() {
  {
    const CurrentDevice current(*this);
    for (const EventHandle event : spare_events_) functions().event_destroy(event);
  }
  CUdevice device{};
  if (functions().device_get(&device, facts_.ordinal) == CUDA_SUCCESS)
    functions().primary_context_release(device);
}

Status CudaDevice::check(int code, std::string_view what) const {
  if (code == CUDA_SUCCESS) return {};
  return driver_.check(code, str("GPU ", facts_.ordinal, ": ", what));
}

EventHandle CudaDevice::spare_event() const {
  const std::lock_guard lock(mutex_);
  if (spare_events_.empty()) return nullptr;
  const EventHandle event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

void CudaDevice::give_back(EventHandle event) const {
  {
    const std::lock_guard lock(mutex_);
    if (spare_events_.size() < max_spare_events) {
      spare_events_.push_back(event);
      return;
    }
  }
  const CurrentDevice current(*this);
  functions().event_destroy(event);
}

namespace {

// The innermost one; null if there is none.
thread_local const CurrentDevice* innermost = nullptr;

// Sets the calling thread's mode and returns the previous one.
int exchange_capture_mode(const CudaDevice& device, int mode) {
  auto exchanged = static_cast<CUstreamCaptureMode>(mode);
  device.functions().exchange_capture_mode(&exchanged);
  return exchanged;
}

}  // namespace

CurrentDevice::CurrentDevice(const CudaDevice& device, DriverUse use)
    : device_(device), outer_(std::exchange(innermost, this)) {
  is_relaxed_ = outer_ != nullptr && outer_->is_relaxed_;
  if (use == DriverUse::any && !is_relaxed_) {
    capture_mode_ = exchange_capture_mode(device, CU_STREAM_CAPTURE_MODE_RELAXED);
    is_relaxed_ = has_relaxed_ = true;
  }
  if (is_nested()) {
    status_ = outer_->status_;
    return;
  }
  // Does not check whether it is current already: that would be a driver call, too.
  status_ = device.check(device.functions().context_push(device.context()), "cuCtxPushCurrent");
  pushed_ = status_.ok();
}

CurrentDevice::~CurrentDevice() {
  innermost = outer_;
  CUcontext popped = nullptr;
  if (pushed_) device_.functions().context_pop(&popped);
  if (has_relaxed_) exchange_capture_mode(device_, capture_mode_);
}

}  // namespace rueda
