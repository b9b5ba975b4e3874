#include "backend/gpu/persistent_reduction.h"

#include <optional>
#include <thread>
#include <utility>

#include "backend/gpu/nccl_factor.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

// Once the world has ended: streams have been released, and their remaining work ends soon.
constexpr Duration abort_timeout = std::chrono::seconds(10);
constexpr Duration between_looks_at_event = std::chrono::milliseconds(100);
constexpr auto between_steps = std::chrono::microseconds(200);

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
      plan_(*nccl_plan(reduction)),
      piece_(piece),
      buffer_(std::move(buffer)),
      counters_(counters) {}

PersistentReduction::~PersistentReduction() {
  outlast_start();
  outlast_run();
  communicator_->keep(std::move(buffer_));
}

// For a start whose end nobody waited for. NCCL may access the tensor once other ranks join.
void PersistentReduction::outlast_start() {
  while (step_ != Step::none) {
    const auto enqueued = advance();
    if (!enqueued) return communicator_->fail(enqueued.status());
    if (!*enqueued) std::this_thread::sleep_for(between_steps);
  }
}

void PersistentReduction::outlast_run() {
  if (!last_) return;
  std::optional<Time> deadline;
  for (;;) {
    const Time now = Clock::now();
    const Status done = last_->event().wait_until_done(now + between_looks_at_event);
    if (done.ok()) return;
    if (!deadline && !communicator_->over().ok()) deadline = now + abort_timeout;
    if (done.code() == ErrorCode::timeout && (!deadline || now < *deadline)) continue;
    return log(LogLevel::warning,
               "a persistent allreduce was destroyed before it was done: ", done.to_string());
  }
}

Expected<bool> PersistentReduction::is_captured(void* stream) const {
  return borrowed(device_, stream).is_capturing();
}

// Outside a graph the engine watches the run; within one, that is up to whoever launches the graph.
Status PersistentReduction::start(void* handle) {
  if (piece_.count == 0) return check();
  const CudaStream stream = borrowed(device_, handle);
  const auto captured = stream.is_capturing();
  if (!captured) return captured.status();
  is_captured_ = *captured;
  stream_ = handle;
  begin_ = Clock::now();
  before_.reset();
  if (!is_captured_) {
    if (Status status = follow_last(handle); !status.ok()) return status;
    auto before = GpuEvent::after(stream);
    if (!before) return before.status();
    before_ = std::move(before).value();
  }
  if (Status status = pack(); !status.ok()) return status;
  step_ = Step::call;
  return advance().status();
}

Status PersistentReduction::follow_last(void* stream) const {
  return last_ && last_stream_ != stream ? last_->make_stream_wait(stream) : Status();
}

Status PersistentReduction::pack() {
  if (!reduction_.wire && plan_.before == 1.0) return {};
  const auto count = static_cast<std::uint64_t>(piece_.count);
  std::byte* const target = reduction_.wire ? buffer_.data() : piece_.output;
  return convert({piece_.input, target, count, reduction_.dtype, plan_.how.dtype}, plan_.before);
}

Status PersistentReduction::unpack() {
  if (!reduction_.wire && plan_.after == 1.0) return {};
  const auto count = static_cast<std::uint64_t>(piece_.count);
  const std::byte* const source = reduction_.wire ? buffer_.data() : piece_.output;
  return convert({source, piece_.output, count, plan_.how.dtype, reduction_.dtype}, plan_.after);
}

Expected<bool> PersistentReduction::advance() {
  const auto enqueued = take_steps();
  if (enqueued) return enqueued;
  step_ = Step::none;
  // Some of the work may be in the stream.
  if (!is_captured_) {
    if (auto after = GpuEvent::after(borrowed(device_, stream_))) last_ = std::move(after).value();
  }
  return enqueued;
}

Expected<bool> PersistentReduction::take_steps() {
  if (step_ == Step::call) {
    const auto called = call();
    if (!called) return called;
    if (!*called) return not_yet();
    counters_.nccl_calls.add(1);
    step_ = Step::launch;
  }
  if (step_ == Step::launch) {
    const auto launched = communicator_->poll();
    if (!launched) return launched;
    if (!*launched) return not_yet();
    if (Status status = finish_start(); !status.ok()) return status;
    step_ = Step::none;
  }
  return true;
}

Expected<bool> PersistentReduction::call() {
  std::byte* const output = reduction_.wire ? buffer_.data() : piece_.output;
  const bool is_packed = reduction_.wire || plan_.before != 1.0;
  const std::byte* const input = is_packed ? output : piece_.input;
  return communicator_->enqueue(
      [&](NcclCommunicator& communicator) {
        return communicator.allreduce(input, output, static_cast<std::uint64_t>(piece_.count),
                                      plan_.how, borrowed(device_, stream_).handle());
      },
      is_captured_);
}

Expected<bool> PersistentReduction::not_yet() const {
  const Duration timeout = communicator_->timeout();
  if (timeout == Duration::zero() || Clock::now() - begin_ < timeout) return false;
  return Status(ErrorCode::timeout,
                str("NCCL has not enqueued a persistent allreduce for ", to_seconds(timeout),
                    " s (RUEDA_TRANSFER_TIMEOUT): other ranks may not have started it"));
}

Status PersistentReduction::finish_start() {
  if (Status unpacked = unpack(); !unpacked.ok()) return unpacked;
  if (is_captured_) return {};
  auto after = GpuEvent::after(borrowed(device_, stream_));
  if (!after) return after.status();
  last_ = *after;
  last_stream_ = stream_;
  communicator_->remember(std::move(after).value(), {std::move(before_)});
  return {};
}

Status PersistentReduction::convert(const TensorCopy& copy, double scale) {
  counters_.gpu_launches.add(1);
  counters_.bytes_packed.add(static_cast<std::int64_t>(buffer_.size()));
  return gpu_.kernels->copy(borrowed(device_, stream_), {&copy, 1}, scale);
}

Status PersistentReduction::check() const {
  return communicator_->poll().status();
}

Expected<bool> StagedReduction::is_captured(void* stream) const {
  return borrowed(device_, stream).is_capturing();
}

}  // namespace rueda
