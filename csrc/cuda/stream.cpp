#include "cuda/stream.h"

#include <thread>
#include <utility>

#include "core/strings.h"
#include "cuda/driver_table.h"

namespace rueda {

namespace {

// True for success, false for "not ready".
Expected<bool> is_ready(const CudaDevice& device, CUresult result, const char* what) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (Status status = device.check(result, what); !status.ok()) return status;
  return true;
}

// Polls: at first without sleeping, since even the shortest sleep takes some 60 us, and rarely
// after a while, so that a long wait uses no processor time.
template <class Question>
Status wait_until(const Question& question, Time deadline, const std::string& awaited) {
  constexpr auto max_pause = std::chrono::microseconds(200);
  constexpr auto max_spin = std::chrono::microseconds(50);
  const Time begin = Clock::now();
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    const Expected<bool> answer = question();
    if (!answer) return answer.status();
    if (answer.value()) return {};
    const Time now = Clock::now();
    if (now >= deadline)
      return Status(ErrorCode::timeout, str(awaited, " is not done before the deadline"));
    if (now - begin < max_spin) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, max_pause);
  }
}

}  // namespace

CudaStream::CudaStream(DeviceReference device, StreamHandle handle, bool owned)
    : device_(std::move(device)), handle_(handle), owned_(owned) {}

Expected<CudaStream> CudaStream::create(DeviceReference device) {
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  int lowest = 0;
  int highest = 0;  // the smallest number
  if (Status status = device->check(device->functions().context_priority_range(&lowest, &highest),
                                    "cuCtxGetStreamPriorityRange");
      !status.ok()) {
    return status;
  }
  CUstream handle = nullptr;
  if (Status status =
          device->check(device->functions().stream_create(&handle, CU_STREAM_NON_BLOCKING, highest),
                        "cuStreamCreateWithPriority");
      !status.ok()) {
    return status;
  }
  return CudaStream(std::move(device), handle, true);
}

CudaStream CudaStream::borrow(DeviceReference device, std::uintptr_t handle) {
  return CudaStream(std::move(device), reinterpret_cast<StreamHandle>(handle), false);
}

CudaStream::CudaStream(CudaStream&& other) noexcept
    : device_(std::move(other.device_)),
      handle_(std::exchange(other.handle_, nullptr)),
      owned_(std::exchange(other.owned_, false)) {}

CudaStream& CudaStream::operator=(CudaStream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(owned_, other.owned_);
  return *this;
}

CudaStream::~CudaStream() {
  if (!owned_) return;
  const CurrentDevice current(*device_);
  device_->functions().stream_destroy(handle_);
}

Status CudaStream::wait_for(const CudaEvent& event) const {
  const CurrentDevice current(*device_, DriverUse::enqueue);
  if (!current.status().ok()) return current.status();
  return device_->check(
      device_->functions().stream_wait_event(handle_, event.handle(), CU_EVENT_WAIT_DEFAULT),
      "cuStreamWaitEvent");
}

Expected<bool> CudaStream::is_idle() const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  return is_ready(*device_, device_->functions().stream_query(handle_), "cuStreamQuery");
}

Status CudaStream::wait_until_idle(Time deadline) const {
  return wait_until([this] { return is_idle(); }, deadline,
                    str("a stream of GPU ", device_->facts().ordinal));
}

Expected<bool> CudaStream::is_capturing() const {
  const CurrentDevice current(*device_, DriverUse::enqueue);
  if (!current.status().ok()) return current.status();
  CUstreamCaptureStatus capture{};
  if (Status status = device_->check(device_->functions().stream_is_capturing(handle_, &capture),
                                     "cuStreamIsCapturing");
      !status.ok()) {
    return status;
  }
  return capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

CudaEvent::CudaEvent(DeviceReference device, EventHandle handle)
    : device_(std::move(device)), handle_(handle) {}

Expected<CudaEvent> CudaEvent::create(DeviceReference device) {
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  CUevent handle = nullptr;
  if (Status status = device->check(
          device->functions().event_create(&handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      !status.ok()) {
    return status;
  }
  return CudaEvent(std::move(device), handle);
}

Expected<CudaEvent> CudaEvent::after(const CudaStream& stream) {
  const CurrentDevice current(*stream.device(), DriverUse::enqueue);
  if (!current.status().ok()) return current.status();
  const EventHandle spare = stream.device()->spare_event();
  auto event = spare != nullptr ? CudaEvent(stream.device(), spare) : create(stream.device());
  if (!event) return event;
  if (Status status = event->record(stream); !status.ok()) return status;
  return event;
}

CudaEvent::CudaEvent(CudaEvent&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

CudaEvent::~CudaEvent() {
  if (handle_ != nullptr) device_->give_back(handle_);
}

Status CudaEvent::record(const CudaStream& stream) const {
  const CurrentDevice current(*device_, DriverUse::enqueue);
  if (!current.status().ok()) return current.status();
  return device_->check(device_->functions().event_record(handle_, stream.handle()),
                        "cuEventRecord");
}

Expected<bool> CudaEvent::is_done() const {
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  return is_ready(*device_, device_->functions().event_query(handle_), "cuEventQuery");
}

Status CudaEvent::wait_until_done(Time deadline) const {
  return wait_until([this] { return is_done(); }, deadline,
                    str("an event of GPU ", device_->facts().ordinal));
}

}  // namespace rueda
