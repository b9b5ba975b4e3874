#include "backend/gpu/result_pool.h"

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/device_result.h"
#include "core/log.h"
#include "cuda/memory.h"

namespace rueda {

namespace {

// The pool may keep 1/16 of the device's memory for later results.
constexpr std::size_t kept_part = 16;
// How long memory without a pool may remain in use when dropped; after that the driver waits.
constexpr Duration event_timeout = std::chrono::seconds(10);

// The streams that use a result's memory.
class Users {
 public:
  explicit Users(std::shared_ptr<const CudaStream> writer) : writer_(std::move(writer)) {}

  // After a failure it is unknown when all uses have ended. A refusal is up to the caller to
  // handle.
  Status add(void* handle) {
    const Status status = try_to_add(handle);
    const std::lock_guard lock(mutex_);
    if (!status.ok() && status.code() != ErrorCode::unsupported) lost_ = status;
    return status;
  }

  // Calls `call` with an event after each use, including the writer's, until a call fails.
  template <class Call>
  Status for_each(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (!lost_.ok()) return lost_;
    auto written = CudaEvent::after(*writer_);
    if (!written) return written.status();
    Status status = call(*written);
    for (std::size_t i = 0; i < released_.size() && status.ok(); ++i) status = call(released_[i]);
    return status;
  }

 private:
  Status try_to_add(void* handle) {
    const CudaStream stream =
        CudaStream::borrow(writer_->device(), reinterpret_cast<std::uintptr_t>(handle));
    const auto capturing = stream.is_capturing();
    if (!capturing) return capturing.status();
    if (*capturing) {
      return {ErrorCode::unsupported,
              "a result cannot be released on a stream that is being captured into a CUDA graph"};
    }
    auto event = CudaEvent::after(stream);
    if (!event) return event.status();
    const std::lock_guard lock(mutex_);
    released_.push_back(std::move(event).value());
    return {};
  }

  std::shared_ptr<const CudaStream> writer_;
  std::mutex mutex_;
  std::vector<CudaEvent> released_;
  Status lost_;
};

}  // namespace

class ResultPool::Pooled final : public DeviceResult {
 public:
  Pooled(std::shared_ptr<const ResultPool> pool, std::shared_ptr<const CudaStream> writer,
         std::byte* data)
      : pool_(std::move(pool)), users_(std::move(writer)), data_(data) {}
  // Memory that cannot be freed in order is leaked, so that nobody sees another's data.
  ~Pooled() override {
    const CudaStream& ending = pool_->ending_;
    Status status = users_.for_each([&](const CudaEvent& event) { return ending.wait_for(event); });
    if (status.ok()) status = pool_->pool_->free(ending, data_);
    if (!status.ok()) log(LogLevel::warning, "a result's memory is leaked: ", status.to_string());
  }
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;

  Status release(void* stream) override { return users_.add(stream); }

 private:
  std::shared_ptr<const ResultPool> pool_;
  Users users_;
  std::byte* data_;
};

class ResultPool::Plain final : public DeviceResult {
 public:
  Plain(DeviceMemory memory, std::shared_ptr<const CudaStream> writer)
      : memory_(std::move(memory)), users_(std::move(writer)) {}
  ~Plain() override {
    const Time deadline = Clock::now() + event_timeout;
    const Status status =
        users_.for_each([&](const CudaEvent& event) { return event.wait_until_done(deadline); });
    if (!status.ok()) log(LogLevel::debug, "a result is freed while in use: ", status.to_string());
  }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  Status release(void* stream) override { return users_.add(stream); }

 private:
  DeviceMemory memory_;
  Users users_;
};

ResultPool::ResultPool(DeviceReference device, CudaStream ending)
    : device_(std::move(device)), ending_(std::move(ending)) {}

Expected<std::shared_ptr<ResultPool>> ResultPool::open(const DeviceReference& device) {
  auto ending = CudaStream::create(device);
  if (!ending) return ending.status();
  std::shared_ptr<ResultPool> opened(new ResultPool(device, std::move(ending).value()));
  if (device->facts().has_memory_pools) {
    auto pool = MemoryPool::create(device, device->facts().memory_bytes / kept_part);
    if (pool) {
      opened->pool_ = std::move(pool).value();
      return opened;
    }
    log(LogLevel::debug, "no memory pool: ", pool.status().to_string());
  }
  log(LogLevel::info, "no memory pool on this GPU: it stalls when results are allocated");
  return opened;
}

Expected<std::shared_ptr<std::byte[]>> ResultPool::allocate(
    std::shared_ptr<const CudaStream> writer, std::size_t bytes) {
  if (bytes == 0) return std::shared_ptr<std::byte[]>();
  if (pool_) {
    const auto data = pool_->allocate(*writer, bytes);
    if (!data) return data.status();
    return memory_of(std::make_shared<Pooled>(shared_from_this(), std::move(writer), *data), *data);
  }
  auto memory = DeviceMemory::allocate(device_, bytes);
  if (!memory) return memory.status();
  std::byte* const data = memory->data();
  return memory_of(std::make_shared<Plain>(std::move(memory).value(), std::move(writer)), data);
}

}  // namespace rueda
