// Persistent allreduces if nothing faster is available: a named operation, again and again.
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "api/collectives.h"
#include "api/persistent_kinds.h"
#include "backend/device_backend.h"
#include "core/in_quotes.h"
#include "core/strings.h"

namespace rueda {

namespace {

// How long to wait for a GPU once the world is broken.
constexpr Duration drain_timeout = std::chrono::seconds(10);
constexpr auto between_looks = std::chrono::microseconds(200);

class NamedRun final : public PersistentRun {
 public:
  NamedRun(PersistentTensor tensor, std::shared_ptr<DeviceReduction> reduction)
      : tensor_(std::move(tensor)), life_(tensor_), reduction_(std::move(reduction)) {}

  void begin(std::optional<void*> stream) override {
    life_.begin();
    if (stream) tensor_.input.stream = *stream;
    stream_ = tensor_.input.stream;
    to_be_submitted_ = true;
  }
  bool start_until(std::optional<Time> deadline) override {
    if (!to_be_submitted_) return true;
    // The name is free again once all ranks have learned of the refusal.
    if (refused_ && !refused_->state()->outlast(deadline)) return false;
    refused_.reset();
    to_be_submitted_ = false;
    submit();
    return true;
  }
  bool done() override {
    if (!start_until(Clock::now())) return false;
    if (handle_ && !handle_->done()) return false;
    return wait_until(std::nullopt);
  }
  bool wait_until(std::optional<Time> deadline) override {
    if (!start_until(deadline)) return false;
    if (handle_ && !handle_->state()->outlast(deadline)) return false;
    life_.end();
    if (!handle_) return true;
    const Handle handle = *std::exchange(handle_, std::nullopt);
    if (!reduction_) {
      handle.wait();
      return true;
    }
    look_after(handle);
    handle.wait_on(stream_);
    return true;
  }
  ~NamedRun() override {
    if (handle_) {
      handle_->state()->outlast();
      if (reduction_) look_after(*handle_);
    }
    outlast_gpu();
  }

 private:
  void submit() {
    const Status refusal = refusal_of_capture();
    Submission submission =
        allreduce_submission(Collective::allreduce, tensor_.input, tensor_.output, tensor_.options);
    submission.request.error = refusal;
    std::vector<Submission> one;
    one.push_back(std::move(submission));
    handle_ = life_.runtime().submit(tensor_.options.process_set.id, std::move(one)).front();
    if (refusal.ok()) return;
    // The other ranks learn of it; here the handle would report it too late, after the graph is
    // captured.
    refused_ = std::exchange(handle_, std::nullopt);
    life_.end();
    refusal.throw_if_error();
  }
  // The operation is done, but the GPU may still be using the tensors.
  void look_after(const Handle& handle) {
    std::erase_if(in_use_, [](const auto& finished) { return finished->is_over(); });
    if (const auto& finished = handle.state()->output.finished) in_use_.push_back(finished);
  }
  // Waits however long the GPU takes; but once the world is broken, streams end soon or not at all.
  void outlast_gpu() const {
    std::optional<Time> deadline;
    for (const auto& finished : in_use_) {
      while (!finished->is_over() && (!deadline || Clock::now() < *deadline)) {
        if (!deadline && life_.is_broken()) deadline = Clock::now() + drain_timeout;
        std::this_thread::sleep_for(between_looks);
      }
    }
  }
  // An operation that the ranks negotiate each time cannot become part of a graph.
  [[nodiscard]] Status refusal_of_capture() const {
    if (!reduction_) return {};
    const auto is_captured = reduction_->is_captured(stream_);
    if (!is_captured) return is_captured.status();
    if (!*is_captured) return {};
    return Status(ErrorCode::unsupported,
                  str(in_quotes(life_.name()),
                      ": this persistent allreduce cannot be captured into a CUDA graph"))
        .because(reduction_->obstacle());
  }

  PersistentTensor tensor_;
  PersistentLife life_;
  const std::shared_ptr<DeviceReduction> reduction_;  // null on the host
  void* stream_ = nullptr;                            // this run's
  std::optional<Handle> handle_;
  std::optional<Handle> refused_;  // the last start, if it was refused
  bool to_be_submitted_ = false;
  std::vector<std::shared_ptr<DeviceEvent>> in_use_;  // completion of runs on the GPU
};

}  // namespace

OwnedPersistentRun make_named_run(PersistentTensor tensor,
                                  std::shared_ptr<DeviceReduction> reduction) {
  return OwnedPersistentRun(new NamedRun(std::move(tensor), std::move(reduction)));
}

}  // namespace rueda
