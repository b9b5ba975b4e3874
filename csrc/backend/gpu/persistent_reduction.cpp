#include "backend/gpu/persistent_reduction.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/gpu/nccl_factor.h"
#include "core/log.h"

namespace rueda {

namespace {

// Beyond the time after which the world is given up; memory that a GPU still uses is freed by the
// driver in any case, which waits.
constexpr Duration patience = std::chrono::seconds(10);

CudaStream borrowed(const DeviceReference& device, void* stream) {
  return CudaStream::borrow(device, reinterpret_cast<std::uintptr_t>(stream));
}

}  // namespace

PersistentReduction::PersistentReduction(const Gpu& gpu,
                                         std::shared_ptr<CallersCommunicator> communicator,
                                         const Reduction& reduction, Piece piece,
                                         DeviceMemory buffer, TransferCounters& counters)
    : gpu_(gpu),
      device_(gpu.device),
      communicator_(std::move(communicator)),
      reduction_(reduction),
      how_(*nccl_combination(on_the_wire(reduction), reduction.contributors)),
      piece_(piece),
      buffer_(std::move(buffer)),
      counters_(counters) {}

PersistentReduction::~PersistentReduction() {
  if (!last_) return;
  const Time deadline = Clock::now() + communicator_->timeout() + patience;
  if (Status over = last_->event().wait_until_done(deadline); !over) {
    log(LogLevel::warning, "a persistent allreduce was destroyed: ", over.to_string());
  }
}

Expected<bool> PersistentReduction::is_captured(void* stream) const {
  return borrowed(device_, stream).is_capturing();
}

// Outside of a graph the run is looked after; within, whoever launches the graph has to.
Status PersistentReduction::start(void* handle) {
  const CudaStream stream = borrowed(device_, handle);
  const auto is_captured = stream.is_capturing();
  if (!is_captured) return is_captured.status();
  if (*is_captured) return reduce(stream);
  if (Status status = follow_last(handle); !status) return status;
  auto before = GpuEvent::after(stream);
  if (!before) return before.status();
  if (Status status = reduce(stream); !status) return status;
  auto after = GpuEvent::after(stream);
  if (!after) return after.status();
  last_ = *after;
  last_stream_ = handle;
  communicator_->remember(std::move(after).value(), {std::move(before).value()});
  return {};
}

Status PersistentReduction::follow_last(void* stream) const {
  return last_ && last_stream_ != stream ? last_->hold_back(stream) : Status();
}

Status PersistentReduction::reduce(const CudaStream& stream) {
  if (piece_.count == 0) return check();
  const auto count = static_cast<std::uint64_t>(piece_.count);
  const std::byte* input = piece_.input;
  std::byte* output = piece_.output;
  if (reduction_.wire) {
    input = output = buffer_.data();
    const Status packed =
        convert(stream, {piece_.input, buffer_.data(), count, reduction_.dtype, *reduction_.wire},
                reduction_.prescale);
    if (!packed) return packed;
  }
  const Status enqueued = communicator_->enqueue([&](NcclCommunicator& communicator) {
    return communicator.allreduce(input, output, count, how_, stream.handle());
  });
  if (!enqueued) return enqueued;
  counters_.nccl_calls.add(1);
  if (!reduction_.wire) return {};
  return convert(stream, {buffer_.data(), piece_.output, count, *reduction_.wire, reduction_.dtype},
                 reduction_.postscale);
}

Status PersistentReduction::convert(const CudaStream& stream, const TensorCopy& copy,
                                    double scale) {
  counters_.gpu_launches.add(1);
  counters_.bytes_packed.add(static_cast<std::int64_t>(buffer_.size()));
  return gpu_.kernels->copy(stream, {&copy, 1}, scale);
}

Status PersistentReduction::check() const {
  return communicator_->poll().status();
}

Expected<bool> StagedReduction::is_captured(void* stream) const {
  return borrowed(device_, stream).is_capturing();
}

}  // namespace rueda
