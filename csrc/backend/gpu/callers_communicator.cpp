#include "backend/gpu/callers_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr auto between_looks = std::chrono::milliseconds(1);

}  // namespace

Expected<std::shared_ptr<CallersCommunicator>> CallersCommunicator::start(
    const NcclLibrary& library, DeviceReference device, const nccl::UniqueId& id, int rank,
    int size, Duration timeout) {
  auto communicator = NcclCommunicator::start(library, device, id, rank, size);
  if (!communicator) return communicator.status();
  return std::shared_ptr<CallersCommunicator>(
      new CallersCommunicator(std::move(communicator).value(), device->facts(), timeout));
}

CallersCommunicator::CallersCommunicator(std::unique_ptr<NcclCommunicator> communicator,
                                         const DeviceFacts& gpu, Duration timeout)
    : gpu_(str("the GPU ", gpu.name, " (", gpu.pci_bus_id, ")")),
      timeout_(timeout),
      communicator_(std::move(communicator)) {}

Status CallersCommunicator::over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

Expected<bool> CallersCommunicator::poll() const {
  const std::lock_guard calling(calls_);
  if (Status ended = over(); !ended.ok()) return ended;
  return communicator_->poll();
}

Expected<bool> CallersCommunicator::enqueue(const Call& call, bool is_captured) {
  const std::lock_guard calling(calls_);
  if (Status ended = over(); !ended.ok()) return ended;
  if (const auto ready = communicator_->poll(); !ready || !*ready) return ready;
  if (is_captured) communicator_->expect_late_end();
  if (Status status = call(*communicator_); !status.ok()) return status;
  return true;
}

void CallersCommunicator::remember(std::shared_ptr<GpuEvent> event, UnfinishedWork::Inputs inputs) {
  const std::lock_guard lock(mutex_);
  if (over_.ok()) unfinished_.remember(std::move(event), std::move(inputs), Clock::now());
}

void CallersCommunicator::fail(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = reason;
}

void CallersCommunicator::keep(DeviceMemory memory) {
  if (memory.size() == 0) return;
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

DeviceMemory CallersCommunicator::kept(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const DeviceMemory& memory) {
    return memory.size() == bytes;
  });
  if (found == kept_.end()) return {};
  DeviceMemory memory = std::move(*found);
  kept_.erase(found);
  return memory;
}

Status CallersCommunicator::watch(Time now) {
  Duration waited{};
  {
    const std::lock_guard lock(mutex_);
    if (!over_.ok()) return {};
    if (!failure_.ok()) return failure_;
    const auto looked = unfinished_.look(now);
    if (!looked) return looked.status();
    waited = *looked;
  }
  if (const auto ready = poll(); !ready) return ready.status();
  if (timeout_ == Duration::zero() || waited < timeout_) return {};
  return {ErrorCode::timeout,
          str(gpu_, " has not finished a persistent allreduce for ", to_seconds(waited),
              " s (RUEDA_TRANSFER_TIMEOUT): other ranks may not have started it")};
}

bool CallersCommunicator::end(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!over_.ok()) return false;
  over_ = reason;
  unfinished_.clear();
  return true;
}

bool CallersCommunicator::wait_for_work(Time deadline) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!unfinished_.look(Clock::now())) return false;
      if (unfinished_.is_empty()) return true;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(between_looks);
  }
}

// Later callers find that it has ended.
void CallersCommunicator::begin_abort(const Status& reason) {
  if (!end(reason)) return;
  const std::lock_guard calling(calls_);
  communicator_->begin_abort();
}

void CallersCommunicator::close(Time deadline) {
  const bool is_done = wait_for_work(deadline);
  if (!end({ErrorCode::shutdown, "the process set of the persistent allreduce has ended"})) return;
  const std::lock_guard calling(calls_);
  // NCCL would wait for that work, and could no longer be stopped.
  if (!is_done) return communicator_->abort();
  if (Status closed = communicator_->close(deadline); !closed.ok()) {
    log(LogLevel::debug, "closing a communicator: ", closed.to_string());
  }
}

}  // namespace rueda
