#include "backend/gpu/exchange_task.h"

#include <utility>

namespace rueda {

namespace {

// Slots of the lane's staging memory for input and output; allreduce uses the others.
constexpr std::size_t input_slot = 3;
constexpr std::size_t output_slot = 4;

}  // namespace

std::optional<Status> ExchangeTask::reserve(GpuLane& gpu, Way way) {
  if (way == Way::nccl) return std::nullopt;
  const Input in = input();
  auto from = gpu.memory().staging(gpu.gpu().device, input_slot, in.bytes);
  if (!from) return from.status();
  auto to = gpu.memory().staging(gpu.gpu().device, output_slot, output_bytes());
  if (!to) return to.status();
  host_input_ = in.data != nullptr ? (*from)->data() : nullptr;
  host_output_ = (*to)->data();
  return Status();
}

Expected<bool> ExchangeTask::advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) {
  if (step_ == Step::fetch) {
    const Input in = input();
    if (in.data != nullptr) {
      const Status copied = copy_to_host(gpu.stream(), host_input_, in.data, in.bytes);
      if (!copied.ok()) return copied;
      lane.counters->bytes_staged.add(static_cast<std::int64_t>(in.bytes));
    }
    // Even without input: the copies back of the previous operation must have left the memory.
    auto event = CudaEvent::after(gpu.stream());
    if (!event) return event.status();
    fetched_ = std::move(event).value();
    step_ = Step::wait;
    return true;
  }
  if (step_ == Step::wait) {
    const auto here = fetched_->is_done();
    if (!here) return here.status();
    if (!*here) return false;
    exchange_ = start(gpu, lane, host, host_input_, host_output_);
    step_ = Step::exchange;
    return true;
  }
  if (step_ == Step::done) return false;
  const bool moved = exchange_->advance();
  if (!exchange_->done()) return moved;
  const Status status = exchange_->status();
  exchange_.reset();
  if (!status.ok()) return status;
  if (output() != nullptr) {
    const Status copied = copy_to_device(gpu.stream(), output(), host_output_, output_bytes());
    if (!copied.ok()) return copied;
    lane.counters->bytes_staged.add(static_cast<std::int64_t>(output_bytes()));
  }
  step_ = Step::done;
  return true;
}

}  // namespace rueda
