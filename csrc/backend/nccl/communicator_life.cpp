// How a communicator starts, fails and ends.
#include <memory>
#include <system_error>
#include <utility>

#include "backend/nccl/communicator_state.h"
#include "core/log.h"

namespace rueda {

namespace {

constexpr Duration max_end = std::chrono::seconds(10);
constexpr Duration max_late_end = std::chrono::seconds(1);
// How long a call may still run before it is aborted from another thread.
constexpr Duration max_call = std::chrono::milliseconds(100);
constexpr auto between_polls = std::chrono::microseconds(200);

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

NcclCommunicator::~NcclCommunicator() {
  abort();
}

int NcclCommunicator::size() const {
  return shared_->size;
}

bool NcclCommunicator::is_busy() const {
  return !ended_.load() && !shared_->launch.is_idle();
}

Expected<std::unique_ptr<NcclCommunicator>> NcclCommunicator::start(const NcclLibrary& library,
                                                                    DeviceReference device,
                                                                    const nccl::UniqueId& id,
                                                                    int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    return Status(ErrorCode::invalid_argument, str("rank ", rank, " of ", size, " is none"));
  auto shared = std::make_shared<Shared>(library, std::move(device), rank, size);
  if (Status status = shared->launch.start(shared->device); !status.ok()) return status;
  shared->launch.post([&state = *shared, id](const Status& current) {
    state.failure = current;
    if (!current.ok()) return;
    nccl::Config config;
    config.blocking = 1;
    const nccl::Result result = state.library.functions().comm_init_rank_config(
        &state.handle, state.size, id, state.rank, &config);
    state.failure = state.library.check(result, state.with_rank("ncclCommInitRankConfig"));
  });
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(shared)));
}

Status NcclCommunicator::refused_if_closed() const {
  if (!ended_.load()) return {};
  return {ErrorCode::shutdown, shared_->with_rank("the NCCL communicator has been closed")};
}

Expected<bool> NcclCommunicator::poll() const {
  if (Status status = refused_if_closed(); !status.ok()) return status;
  const Shared& shared = *shared_;
  if (!shared.launch.is_idle()) return false;
  if (!shared.failure.ok()) return shared.failure;
  nccl::Result state = nccl::success;
  const nccl::Result asked = shared.library.functions().comm_get_async_error(shared.handle, &state);
  for (const nccl::Result result : {asked, state}) {
    Status status = shared.library.check(result, shared.with_rank("NCCL"), shared.handle);
    if (!status.ok()) return status;
  }
  return state != nccl::in_progress;
}

Status NcclCommunicator::wait_until_ready(Time deadline) const {
  for (;;) {
    shared_->launch.wait_until_idle(deadline);
    const Expected<bool> ready = poll();
    if (!ready) return ready.status();
    if (ready.value()) return {};
    if (Clock::now() >= deadline) {
      return {ErrorCode::timeout, str(shared_->with_rank("NCCL was not ready before the deadline"),
                                      ": other ranks may be missing")};
    }
    std::this_thread::sleep_for(between_polls);
  }
}

// The thread may outlive this object; what is left ends with the process.
void NcclCommunicator::begin_abort() {
  if (ended_.exchange(true)) return;
  shared_->is_given_up.store(true);
  wait_timeout_ = Clock::now() + (ends_late_.load() ? max_late_end : max_end);
  const auto end = std::make_shared<std::packaged_task<void()>>([shared = shared_] {
    const CurrentDevice current(*shared->device);
    const bool returns = shared->launch.wait_until_idle(Clock::now() + max_call);
    // NCCL may free what this would free while it connects, and the other way round while it
    // leaves.
    if (!returns && shared->stage.load() != Shared::Stage::call)
      shared->launch.wait_until_idle(std::nullopt);
    if (shared->handle != nullptr) shared->library.functions().comm_abort(shared->handle);
    shared->launch.stop();
  });
  ending_ = end->get_future();
  try {
    thread_ = std::thread([end] { (*end)(); });
  } catch (const std::system_error&) {  // no more threads
    (*end)();
  }
}

void NcclCommunicator::abort() {
  begin_abort();
  if (!ending_.valid()) return;
  const bool has_ended = ending_.wait_until(wait_timeout_) == std::future_status::ready;
  ending_ = {};
  if (!thread_.joinable()) return;
  if (has_ended) return thread_.join();
  thread_.detach();
  log(LogLevel::warning, shared_->with_rank("NCCL has not yet released a communicator"),
      ends_late_.load() ? ": it waits until all CUDA graphs that have captured it are destroyed"
      : shared_->stage.load() == Shared::Stage::connect
          ? ": it still waits for other ranks to connect"
          : ": something else keeps the GPU busy");
}

Status NcclCommunicator::close(Time deadline) {
  Status status = wait_until_ready(deadline);
  if (!status.ok()) {
    abort();
    return status;
  }
  Shared& shared = *shared_;
  shared.stage.store(Shared::Stage::leave);
  shared.launch.post([&shared](const Status&) { shared.failure = leave(shared); });
  if (!shared.launch.wait_until_idle(deadline)) {
    status = {ErrorCode::timeout, shared.with_rank("NCCL did not shut down before the deadline")};
  } else {
    status = shared.failure;
  }
  if (!status.ok()) {
    abort();
    return status;
  }
  ended_.store(true);
  shared.launch.stop();
  return {};
}

// Frees everything the communicator holds, unless that fails.
Status NcclCommunicator::leave(Shared& shared) {
  const Api nccl(shared);
  Status status;
  for (const Shared::Registration& each : std::exchange(shared.registrations, {})) {
    const Status ended =
        each.window != nullptr
            ? nccl.check(nccl.functions.window_deregister(nccl.handle(), each.window),
                         "ncclCommWindowDeregister")
            : nccl.check(nccl.functions.comm_deregister(nccl.handle(), each.buffer),
                         "ncclCommDeregister");
    if (status.ok()) status = ended;
  }
  if (status.ok())
    status = nccl.check(nccl.functions.comm_finalize(nccl.handle()), "ncclCommFinalize");
  if (!status.ok()) return status;
  status = nccl.check(nccl.functions.comm_destroy(nccl.handle()), "ncclCommDestroy");
  if (status.ok()) shared.handle = nullptr;
  return status;
}

}  // namespace rueda
