#include "backend/gpu/gpu_lane.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

// How long work that is ending or was given up may take to leave a stream.
constexpr Duration drain_timeout = std::chrono::seconds(10);
// Starting a persistent operation wakes nobody, so it is checked this often.
constexpr Duration between_looks_at_peers = std::chrono::milliseconds(20);
constexpr Duration between_looks_at_callers = std::chrono::seconds(1);

// Identifies the machine, identically in all of its containers.
std::string machine() {
  std::string boot;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> boot) return boot;
  char name[65] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

Expected<std::unique_ptr<GpuLane>> GpuLane::open(const Gpu& gpu) {
  auto stream = CudaStream::create(gpu.device);
  if (!stream) return stream.status();
  auto second = CudaStream::create(gpu.device);
  if (!second) return second.status();
  return std::unique_ptr<GpuLane>(
      new GpuLane(gpu, std::move(stream).value(), std::move(second).value()));
}

GpuLane::GpuLane(const Gpu& gpu, CudaStream stream, CudaStream second_stream)
    : gpu_(gpu),
      stream_(std::make_shared<const CudaStream>(std::move(stream))),
      second_stream_(std::move(second_stream)) {}

// Frees memory only once no copy can reach it any more.
GpuLane::~GpuLane() {
  if (callers_) callers_->begin_abort(Status(ErrorCode::shutdown, "the process set has ended"));
  if (communicator_ && !unfinished_.is_empty()) communicator_->abort();
  if (callers_) callers_->end_abort();
  if (wait_until_idle(Clock::now() + drain_timeout)) return;
  // NCCL frees without waiting for the GPU, so memory that a stream may still reach is leaked.
  log(LogLevel::warning, "a CUDA stream did not finish: its fusion buffers are leaked");
  static_cast<void>(new FusionBuffer(std::move(memory_.fusion())));
}

bool GpuLane::wait_until_idle(Time deadline) {
  Status idle = stream_->wait_until_idle(deadline);
  if (idle.ok()) idle = second_stream_.wait_until_idle(deadline);
  if (!idle.ok())
    log(LogLevel::warning, "a CUDA stream of Rueda did not finish: ", idle.to_string());
  return idle.ok();
}

GpuPeerInfo GpuLane::peer_info(bool is_first) const {
  GpuPeerInfo info;
  info.has_gpu = true;
  info.has_kernels = gpu_.kernels.has_value();
  write_text(info.host, machine());
  write_text(info.gpu, gpu_.device->facts().pci_bus_id);
  write_text(info.problem, gpu_.no_nccl);
  if (gpu_.nccl == nullptr) return info;
  info.nccl_version = gpu_.nccl->version();
  info.has_nccl = true;
  info.may_share = gpu_.may_share;
  if (!is_first) return info;
  const CurrentDevice current(*gpu_.device);
  if (auto id = gpu_.nccl->unique_id()) {
    info.id = *id;
  } else {
    info.has_nccl = false;
    write_text(info.problem, id.status().to_string());
  }
  return info;
}

Status GpuLane::settle(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank) {
  if (choice.path == GpuPath::nccl) {
    auto started = NcclCommunicator::start(*gpu_.nccl, gpu_.device, infos.front().id, rank,
                                           static_cast<int>(infos.size()));
    if (!started) return started.status();
    communicator_ = std::move(started).value();
  }
  log(LogLevel::debug, "tensors on ", gpu_.device->facts().name, " travel by ",
      name_of(choice.path));
  path_.choose(std::move(choice), infos, rank);
  return {};
}

Status GpuLane::connect_callers(const nccl::UniqueId& id, int rank, int size, Duration timeout) {
  auto started = CallersCommunicator::start(*gpu_.nccl, gpu_.device, id, rank, size, timeout);
  if (!started) return started.status();
  callers_ = std::move(started).value();
  return {};
}

void GpuLane::remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now) {
  unfinished_.remember(std::move(event), std::move(inputs), now);
}

Status GpuLane::watch(Time now, Duration timeout) {
  const auto waited = unfinished_.look(now);
  if (!waited) return waited.status();
  if (communicator_) {
    if (const auto ready = communicator_->poll(); !ready) return ready.status();
  }
  if (callers_) {
    if (Status status = callers_->watch(now); !status.ok()) return status;
  }
  if (timeout == Duration::zero() || *waited < timeout) return {};
  return {
      ErrorCode::timeout,
      str("the GPU ", gpu_.device->facts().name, " (", gpu_.device->facts().pci_bus_id,
          ") has not finished a batch for ", to_seconds(*waited), " s (RUEDA_TRANSFER_TIMEOUT)")};
}

std::optional<Time> GpuLane::next_look(Time now) const {
  if (!is_idle()) return now + between_looks_at_peers;
  if (!callers_) return std::nullopt;
  const Duration timeout = callers_->timeout();
  if (timeout == Duration::zero()) return now + between_looks_at_callers;
  return now + std::clamp(timeout / 4, between_looks_at_peers, between_looks_at_callers);
}

void GpuLane::give_up(const Status& reason) {
  given_up_ = unfinished_.give_up(reason);
}

void GpuLane::begin_abort(const Status& reason) {
  if (communicator_) communicator_->begin_abort();
  if (callers_) callers_->begin_abort(reason);
}

void GpuLane::end_abort() {
  if (communicator_) communicator_->abort();
  if (callers_) callers_->end_abort();
  const bool is_over = wait_until_idle(Clock::now() + drain_timeout);
  // Otherwise the holders of the tensors keep holding them.
  for (const auto& event : std::exchange(given_up_, {})) {
    if (is_over) event->end();
  }
}

void GpuLane::close(Time deadline) {
  Status idle = stream_->wait_until_idle(deadline);
  if (idle.ok()) unfinished_.clear();
  if (callers_) callers_->close(deadline);
  if (idle.ok() && communicator_) idle = communicator_->close(deadline);
  if (!idle.ok()) log(LogLevel::debug, "closing a lane: ", idle.to_string());
}

}  // namespace rueda
