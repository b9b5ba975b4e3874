#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "backend/device_backend.h"
#include "backend/ended_operation.h"
#include "backend/gpu/allreduce_task.h"
#include "backend/gpu/exchange_task.h"
#include "backend/gpu/gpu_lane.h"
#include "backend/gpu/gpu_operation.h"
#include "backend/gpu/persistent_task.h"
#include "backend/gpu/result_pool.h"
#include "backend/gpu_support.h"
#include "core/log.h"
#include "core/strings.h"
#include "cuda/kernel_image.h"

namespace rueda {

namespace {

constexpr Duration between_looks_at_work = std::chrono::milliseconds(20);
// NCCL's own setting, which it reads from the environment.
bool is_multi_rank_enabled() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string_view(value) == "1";
}

constexpr Duration close_timeout = std::chrono::seconds(10);

class GpuBackend final : public DeviceBackend {
 public:
  GpuBackend(const Options& options, Backend& host)
      : options_(options), timeout_(seconds(options.transfer_timeout)), host_(host) {}
  ~GpuBackend() override { close(); }

  [[nodiscard]] std::string_view name() const override { return "gpu"; }

  Expected<std::shared_ptr<DeviceEvent>> mark(int device, void* stream) override {
    if (Status status = open(device); !status.ok()) return status;
    const CurrentDevice current(*gpu_.device, DriverUse::enqueue);
    if (!current.status().ok()) return current.status();
    const CudaStream marked =
        CudaStream::borrow(gpu_.device, reinterpret_cast<std::uintptr_t>(stream));
    const auto capturing = marked.is_capturing();
    if (!capturing) return capturing.status();
    if (*capturing) {
      return Status(ErrorCode::unsupported,
                    "its stream is being captured into a CUDA graph, during which the ranks cannot "
                    "coordinate: create a persistent allreduce before the capture and start it, "
                    "or reduce outside the captured part");
    }
    auto event = GpuEvent::after(marked);
    if (!event) return event.status();
    return std::shared_ptr<DeviceEvent>(std::move(event).value());
  }

  std::shared_ptr<std::byte[]> allocate(const Lane& lane, std::size_t bytes) override {
    if (!is_open()) return nullptr;  // this rank has joined: the operation will fail everywhere
    auto memory = allocate_result(lane, bytes);
    if (memory) return std::move(memory).value();
    if (const auto gpu = lane_of(lane)) (*gpu)->memory().note_shortage(memory.status());
    return nullptr;
  }
  void agree_on_results() override { agrees_on_results_ = true; }

  // The tensors of a group share one event.
  void await(std::shared_ptr<DeviceEvent> event) override {
    if (inputs_.empty() || inputs_.back() != event) inputs_.push_back(std::move(event));
  }

  [[nodiscard]] Status watch(Time now) override {
    if (!next_look_ || now < *next_look_ || aborted_) return {};
    next_look_.reset();
    if (lanes_.empty()) return {};
    const CurrentDevice current(*gpu_.device);
    if (!current.status().ok()) return current.status();
    for (const auto& [set_id, lane] : lanes_) {
      if (!lane->next_look(now)) continue;
      if (Status status = lane->watch(now, timeout_); !status.ok()) return status;
      if (const auto next = lane->next_look(now)) look_by(*next);
    }
    return {};
  }
  [[nodiscard]] std::optional<Time> next_look() const override { return next_look_; }

  void forget(int set_id) override {
    const auto lane = lanes_.find(set_id);
    if (lane == lanes_.end()) return;
    if (!aborted_) lane->second->close(Clock::now() + close_timeout);
    lanes_.erase(lane);
  }

  void abort(const Status& reason) override {
    if (std::exchange(aborted_, true)) return;
    next_look_.reset();
    inputs_.clear();
    for (const auto& [set_id, lane] : lanes_) lane->give_up(reason);
    for (const auto& [set_id, lane] : lanes_) lane->begin_abort(reason);
    for (const auto& [set_id, lane] : lanes_) lane->end_abort();
  }

  void close() override {
    const Time deadline = Clock::now() + close_timeout;
    next_look_.reset();
    if (std::exchange(aborted_, true)) return;
    for (const auto& [set_id, lane] : lanes_) lane->close(deadline);
  }

  std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                       std::vector<Piece> pieces) override {
    return start(lane, std::make_unique<AllreduceTask>(reduction, std::move(pieces), lane.size()));
  }
  std::unique_ptr<Operation> persist(const Lane& lane, const Reduction& reduction, Piece piece,
                                     TakeReduction take) override {
    return start(
        lane, std::make_unique<PersistentTask>(reduction, piece, lane, timeout_, std::move(take)));
  }
  std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                            const std::byte* input, std::byte* output,
                                            std::vector<std::int64_t> lengths) override {
    return start(lane,
                 make_reduce_scatter_task(reduction, input, output, std::move(lengths), lane.rank));
  }
  std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input, std::byte* output,
                                       std::vector<std::int64_t> lengths) override {
    return start(lane, make_allgather_task(input, output, std::move(lengths), lane.rank));
  }
  std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                       int root) override {
    return start(lane, make_broadcast_task(data, bytes, root, lane.rank));
  }
  std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                      AllocateRows allocate) override {
    return start(lane, make_alltoall_task(std::move(input), std::move(allocate), lane.rank));
  }

 private:
  void look_by(Time time) { next_look_ = next_look_ ? std::min(*next_look_, time) : time; }

  // The first tensor determines this rank's device.
  Status open(int ordinal) {
    const std::lock_guard lock(mutex_);
    if (is_open()) {
      const int own = gpu_.device->facts().ordinal;
      if (own == ordinal) return {};
      return {ErrorCode::invalid_argument,
              str("it is on cuda:", ordinal, ", but this rank already uses cuda:", own,
                  ": one rank uses one GPU, usually that of its local rank")};
    }
    const auto driver = load_cuda(options_);
    if (!driver) return driver.status();
    auto device = CudaDevice::open(**driver, ordinal);
    if (!device) return device.status();
    if (auto kernels = BatchKernels::load(*device)) {
      gpu_.kernels = std::move(kernels).value();
    } else {
      log(LogLevel::warning,
          "GPU tensors are packed one by one, and those with scale factors go through host "
          "memory: ",
          kernels.status().to_string());
    }
    if (options_.gpu_backend != "staged") {
      if (const auto nccl = load_nccl(options_)) {
        gpu_.nccl = *nccl;
        gpu_.may_share = options_.gpu_sharing == "on" &&
                         gpu_.nccl->version() >= sharing_nccl_version && is_multi_rank_enabled();
      } else {
        gpu_.no_nccl = nccl.status().to_string();
      }
    }
    gpu_.device = std::move(device).value();
    is_open_.store(true, std::memory_order_release);
    return {};
  }

  [[nodiscard]] bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  Expected<GpuLane*> lane_of(const Lane& lane) {
    std::unique_ptr<GpuLane>& found = lanes_[lane.set_id];
    if (!found) {
      auto opened = GpuLane::open(gpu_);
      if (!opened) return opened.status();
      found = std::move(opened).value();
    }
    return found.get();
  }

  Expected<std::shared_ptr<std::byte[]>> allocate_result(const Lane& lane, std::size_t bytes) {
    const auto gpu = lane_of(lane);
    if (!gpu) return gpu.status();
    if (!results_) {
      auto opened = ResultPool::open(gpu_.device);
      if (!opened) return opened.status();
      results_ = std::move(opened).value();
    }
    return results_->allocate((*gpu)->shared_stream(), bytes);
  }

  std::unique_ptr<Operation> start(const Lane& lane, std::unique_ptr<GpuTask> task) {
    GpuLane* gpu = nullptr;
    if (is_open()) {
      auto found = lane_of(lane);
      if (!found) return std::make_unique<EndedOperation>(found.status());
      gpu = *found;
    }
    std::optional<Status> results;
    if (std::exchange(agrees_on_results_, false) && gpu != nullptr)
      results = gpu->memory().take_shortage();
    look_by(Clock::now() + between_looks_at_work);
    return std::make_unique<GpuOperation>(gpu, lane, host_, options_.gpu_backend, std::move(task),
                                          std::exchange(inputs_, {}), std::move(results));
  }

  const Options options_;
  const Duration timeout_;
  Backend& host_;
  std::mutex mutex_;                  // for opening the device
  std::atomic<bool> is_open_{false};  // `gpu_` does not change any more
  Gpu gpu_;
  std::map<int, std::unique_ptr<GpuLane>> lanes_;     // by process set
  std::shared_ptr<ResultPool> results_;               // once there are results
  std::vector<std::shared_ptr<DeviceEvent>> inputs_;  // what the next operation must follow
  bool agrees_on_results_ = false;                    // for the next operation
  std::optional<Time> next_look_;
  bool aborted_ = false;  // or closed: nothing is in progress
};

}  // namespace

GpuSupport gpu_support(const Options& options) {
  GpuSupport support;
  support.built = true;
  if (!kernel_image().empty()) support.kernels = kernel_image_origin();
  if (const auto nccl = load_nccl(options)) support.nccl = nccl_version_text((*nccl)->version());
  return support;
}

std::unique_ptr<DeviceBackend> make_device_backend(const Options& options, Backend& host) {
  return std::make_unique<GpuBackend>(options, host);
}

}  // namespace rueda
