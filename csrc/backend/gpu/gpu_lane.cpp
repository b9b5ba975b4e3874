#include "backend/gpu/gpu_lane.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "backend/gpu/growth.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

// How long what was given up, or is at its end, may take to leave a stream.
constexpr Duration longest_end = std::chrono::seconds(10);

// Which machine this is, the same in all of its containers.
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

// Memory is freed only when no copy can reach it any more.
GpuLane::~GpuLane() {
  if (communicator_ && !unfinished_.empty()) communicator_->abort();
  wait_until_idle(Clock::now() + longest_end);
}

void GpuLane::wait_until_idle(Time deadline) {
  Status idle = stream_->wait_until_idle(deadline);
  if (idle) idle = second_stream_.wait_until_idle(deadline);
  if (!idle) log(LogLevel::warning, "a stream of Rueda does not end: ", idle.to_string());
}

GpuCard GpuLane::card(bool is_first) const {
  GpuCard card;
  card.has_gpu = true;
  card.has_kernels = gpu_.kernels.has_value();
  write_text(card.host, machine());
  write_text(card.gpu, gpu_.device->facts().pci_bus_id);
  write_text(card.problem, gpu_.no_nccl);
  if (gpu_.nccl == nullptr) return card;
  card.nccl_version = gpu_.nccl->version();
  card.has_nccl = true;
  if (!is_first) return card;
  const CurrentDevice current(*gpu_.device);
  if (auto id = gpu_.nccl->unique_id()) {
    card.id = *id;
  } else {
    card.has_nccl = false;
    write_text(card.problem, id.status().to_string());
  }
  return card;
}

Status GpuLane::settle(GpuRoad road, std::span<const GpuCard> cards, int rank) {
  all_have_kernels_ =
      std::all_of(cards.begin(), cards.end(), [](const GpuCard& card) { return card.has_kernels; });
  if (road == GpuRoad::nccl) {
    auto started = NcclCommunicator::start(*gpu_.nccl, gpu_.device, cards.front().id, rank,
                                           static_cast<int>(cards.size()));
    if (!started) return started.status();
    communicator_ = std::move(started).value();
  }
  road_ = road;
  log(LogLevel::debug, "tensors of ", gpu_.device->facts().name, " go by ", name_of(road));
  return {};
}

Expected<std::byte*> GpuLane::buffer(std::size_t bytes) {
  return buffer_.room(bytes, *gpu_.nccl, gpu_.device, *communicator_);
}

Expected<StagingMemory*> GpuLane::staging(std::size_t slot, std::size_t bytes) {
  StagingMemory& memory = staging_[slot];
  if (memory.size() < bytes) {
    auto larger = StagingMemory::allocate(gpu_.device, grown(memory.size(), bytes));
    if (!larger) return larger.status();
    outgrown_staging_.push_back(std::exchange(memory, std::move(larger).value()));
  }
  return &memory;
}

void GpuLane::remember(std::shared_ptr<GpuEvent> event, Inputs inputs, Time now) {
  unfinished_.push_back({std::move(event), std::move(inputs), now});
}

Status GpuLane::watch(Time now, Duration timeout) {
  while (!unfinished_.empty()) {
    Unfinished& first = unfinished_.front();
    const auto reached = first.event->reached();
    if (!reached) return reached.status();
    if (!*reached) {
      // The application's own work takes as long as it takes.
      std::erase_if(first.inputs, [](const auto& input) { return input->is_over(); });
      if (!first.inputs.empty()) first.since = now;
      break;
    }
    unfinished_.pop_front();
    // What comes next could begin only now.
    if (!unfinished_.empty()) unfinished_.front().since = now;
  }
  if (communicator_) {
    if (const auto ready = communicator_->poll(); !ready) return ready.status();
  }
  if (unfinished_.empty() || timeout == Duration::zero()) return {};
  const Duration waited = now - unfinished_.front().since;
  if (waited < timeout) return {};
  return {
      ErrorCode::timeout,
      str("the GPU ", gpu_.device->facts().name, " (", gpu_.device->facts().pci_bus_id,
          ") has not finished a batch for ", to_seconds(waited), " s (RUEDA_TRANSFER_TIMEOUT)")};
}

void GpuLane::abort(const Status& reason) {
  std::vector<std::shared_ptr<GpuEvent>> given_up;
  for (const Unfinished& each : unfinished_) {
    const auto reached = each.event->reached();
    if (reached && *reached) continue;
    each.event->fail(reason);
    given_up.push_back(each.event);
  }
  unfinished_.clear();
  if (communicator_) communicator_->abort();
  wait_until_idle(Clock::now() + longest_end);
  for (const auto& event : given_up) event->end();
}

void GpuLane::close(Time deadline) {
  Status idle = stream_->wait_until_idle(deadline);
  if (idle) unfinished_.clear();
  if (idle && communicator_) {
    buffer_.deregister(*communicator_);
    idle = communicator_->close(deadline);
  }
  if (!idle) log(LogLevel::debug, "closing a lane: ", idle.to_string());
}

}  // namespace rueda
