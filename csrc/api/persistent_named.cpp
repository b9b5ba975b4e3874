// Persistent allreduces where nothing is quicker: a named operation, again and again.
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

// For a GPU whose world is broken.
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
    // The name is free again once all ranks have heard of the refusal.
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
    // The others have been told; here it would come too late, with the graph done.
    refused_ = std::exchange(handle_, std::nullopt);
    life_.end();
    refusal.throw_if_error();
  }
  // The operation is done, but the GPU may not have left the tensors yet.
  void look_after(const Handle& handle) {
    std::erase_if(in_use_, [](const auto& finished) { return finished->is_over(); });
    if (const auto& finished = handle.state()->output.finished) in_use_.push_back(finished);
  }
  // However long the GPU takes; but once the world is broken, streams end soon or not at all.
  void outlast_gpu() const {
    std::optional<Time> deadline;
    for (const auto& finished : in_use_) {
      while (!finished->is_over() && (!deadline || Clock::now() < *deadline)) {
        if (!deadline && life_.is_broken()) deadline = Clock::now() + drain_timeout;
        std::this_thread::sleep_for(between_looks);
      }
    }
  }
  // What the ranks agree on each time cannot become part of a graph.
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
  void* stream_ = nullptr;                            // of the run
  std::optional<Handle> handle_;
  std::optional<Handle> refused_;  // the last start, where it was
  bool to_be_submitted_ = false;
  std::vector<std::shared_ptr<DeviceEvent>> in_use_;  // ends of runs on the GPU
};

}  // namespace

OwnedPersistentRun make_named_run(PersistentTensor tensor,
                                  std::shared_ptr<DeviceReduction> reduction) {
  return OwnedPersistentRun(new NamedRun(std::move(tensor), std::move(reduction)));
}

}  // namespace rueda
