#include "backend/gpu/callers_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr auto longest_pause = std::chrono::microseconds(200);

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

Expected<bool> CallersCommunicator::poll_locked() const {
  if (!over_.ok()) return over_;
  return communicator_->poll();
}

Expected<bool> CallersCommunicator::poll() const {
  const std::lock_guard lock(mutex_);
  return poll_locked();
}

// The mutex is free between looks, so that whoever aborts need not wait for other ranks.
Status CallersCommunicator::enqueue(const std::function<Status(NcclCommunicator&)>& call) {
  const std::lock_guard turn(turn_);
  {
    const std::lock_guard lock(mutex_);
    if (const auto ready = poll_locked(); !ready) return ready.status();
    if (Status status = call(*communicator_); !status) return status;
  }
  const Time begin = Clock::now();
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    const auto ready = poll();
    if (!ready) return ready.status();
    if (*ready) return {};
    if (timeout_ > Duration::zero() && Clock::now() - begin >= timeout_) {
      return {ErrorCode::timeout,
              str("NCCL has not enqueued a persistent allreduce for ", to_seconds(timeout_),
                  " s (RUEDA_TRANSFER_TIMEOUT): other ranks may not have started it")};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, longest_pause);
  }
}

void CallersCommunicator::remember(std::shared_ptr<GpuEvent> event, UnfinishedWork::Inputs inputs) {
  const std::lock_guard lock(mutex_);
  if (over_.ok()) unfinished_.remember(std::move(event), std::move(inputs), Clock::now());
}

Status CallersCommunicator::watch(Time now) {
  const std::lock_guard lock(mutex_);
  if (!over_.ok()) return {};
  const auto waited = unfinished_.look(now);
  if (!waited) return waited.status();
  if (const auto ready = communicator_->poll(); !ready) return ready.status();
  if (timeout_ == Duration::zero() || *waited < timeout_) return {};
  return {ErrorCode::timeout,
          str(gpu_, " has not finished a persistent allreduce for ", to_seconds(*waited),
              " s (RUEDA_TRANSFER_TIMEOUT): other ranks may not have started it")};
}

void CallersCommunicator::abort(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!over_.ok()) return;
  over_ = reason;
  unfinished_.clear();
  communicator_->abort();
}

void CallersCommunicator::close(Time deadline) {
  std::unique_ptr<NcclCommunicator> leaving;
  {
    const std::lock_guard lock(mutex_);
    if (!over_.ok()) return;
    over_ = Status(ErrorCode::shutdown, "the process set of the persistent allreduce has ended");
    leaving = std::move(communicator_);
    unfinished_.clear();
  }
  if (Status closed = leaving->close(deadline); !closed) {
    log(LogLevel::debug, "closing a communicator: ", closed.to_string());
  }
}

}  // namespace rueda
