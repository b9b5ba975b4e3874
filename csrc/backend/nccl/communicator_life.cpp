// How a communicator begins, fails and ends.
#include <algorithm>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/nccl/communicator.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr Duration max_end = std::chrono::seconds(10);
constexpr Duration max_late_end = std::chrono::seconds(1);

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, DeviceReference device, int rank,
                                   int size)
    : library_(library), device_(std::move(device)), rank_(rank), size_(size) {}

NcclCommunicator::~NcclCommunicator() {
  abort();
}

std::string NcclCommunicator::with_rank(std::string_view what) const {
  return str(what, " on rank ", rank_, " of ", size_);
}

Expected<std::unique_ptr<NcclCommunicator>> NcclCommunicator::start(const NcclLibrary& library,
                                                                    DeviceReference device,
                                                                    const nccl::UniqueId& id,
                                                                    int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    return Status(ErrorCode::invalid_argument, str("rank ", rank, " of ", size, " is none"));
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  // The device must outlive `current`, also where what is made here does not.
  auto made = std::unique_ptr<NcclCommunicator>(new NcclCommunicator(library, device, rank, size));
  nccl::Config config;
  config.blocking = 0;
  nccl::Comm handle = nullptr;
  const nccl::Result result =
      library.functions().comm_init_rank_config(&handle, size, id, rank, &config);
  made->handle_ = handle;
  if (Status status = library.check(result, made->with_rank("ncclCommInitRankConfig"));
      !status.ok())
    return status;
  return made;
}

Status NcclCommunicator::refused_if_closed() const {
  if (handle_ != nullptr) return {};
  return Status(ErrorCode::shutdown, with_rank("the NCCL communicator has been given up"));
}

Expected<bool> NcclCommunicator::poll() const {
  if (Status status = refused_if_closed(); !status.ok()) return status;
  nccl::Result state = nccl::success;
  const nccl::Result asked = library_.functions().comm_get_async_error(handle_, &state);
  for (const nccl::Result result : {asked, state}) {
    if (Status status = library_.check(result, with_rank("NCCL"), handle_); !status.ok())
      return status;
  }
  return state != nccl::in_progress;
}

Status NcclCommunicator::wait_until_ready(Time deadline) const {
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    const Expected<bool> ready = poll();
    if (!ready) return ready.status();
    if (ready.value()) return {};
    if (Clock::now() >= deadline) {
      return Status(
          ErrorCode::timeout,
          with_rank("NCCL was not ready before the deadline: other ranks may be missing,"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(200));
  }
}

// The thread may outlive this object, and whatever is ended with the process.
void NcclCommunicator::begin_abort() {
  const nccl::Comm handle = handle_.exchange(nullptr);
  if (handle == nullptr) return;
  wait_timeout_ = Clock::now() + (ends_late_.load() ? max_late_end : max_end);
  const auto end = std::make_shared<std::packaged_task<void()>>(
      [device = device_, handle, written = written_, comm_abort = library_.functions().comm_abort] {
        const CurrentDevice current(*device);
        comm_abort(handle);
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
  log(LogLevel::warning, with_rank("NCCL has not yet released a communicator"),
      ends_late_.load() ? ": it waits until all CUDA graphs that have captured it are destroyed"
                        : ": something else keeps the GPU busy");
}

Status NcclCommunicator::close(Time deadline) {
  Status status = enqueue("ncclCommFinalize", [this](const nccl::Functions& functions) {
    return functions.comm_finalize(handle_);
  });
  if (status.ok()) status = wait_until_ready(deadline);
  if (!status.ok()) {
    abort();
    return status;
  }
  const CurrentDevice current(*device_);
  return library_.check(library_.functions().comm_destroy(handle_.exchange(nullptr)),
                        with_rank("ncclCommDestroy"));
}

}  // namespace rueda
