#include "backend/gpu/gpu_operation.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rueda {

namespace {

constexpr Duration idle_timeout = std::chrono::seconds(5);

constexpr std::string_view no_gpu =
    "it has not used one yet: each rank must reduce a tensor on its GPU before it joins";

// Orders what `stream` enqueues from now on after all of them.
Status make_wait(const CudaStream& stream, const GpuLane::Inputs& inputs) {
  Status status;
  for (const auto& input : inputs) {
    if (status.ok()) status = input->make_stream_wait(stream.handle());
  }
  return status;
}

}  // namespace

// Usually runs in the thread that calls NCCL, where the device is current anyway.
struct GpuOperation::Surroundings {
  Surroundings(std::shared_ptr<GpuTask> its_task, GpuLane& its_gpu, const Lane& its_lane,
               GpuLane::Inputs its_inputs)
      : task(std::move(its_task)), gpu(its_gpu), lane(its_lane), inputs(std::move(its_inputs)) {}

  Status begin() {
    if (std::exchange(has_begun, true)) return {};
    if (Status status = make_wait(gpu.stream(), inputs); !status.ok()) return status;
    return task->precede(gpu, lane);
  }
  Status end() {
    if (event) return {};
    if (Status status = task->conclude(gpu, lane); !status.ok()) return status;
    auto made = GpuEvent::after(gpu.stream());
    if (made) event = std::move(made).value();
    return made.status();
  }

  const std::shared_ptr<GpuTask> task;
  GpuLane& gpu;  // outlives its communicator's calls
  const Lane lane;
  GpuLane::Inputs inputs;
  bool has_begun = false;
  std::shared_ptr<GpuEvent> event;
};

GpuOperation::GpuOperation(GpuLane* gpu, const Lane& lane, Backend& host, const std::string& wanted,
                           std::unique_ptr<GpuTask> task, GpuLane::Inputs inputs,
                           std::optional<Status> results)
    : gpu_(gpu),
      lane_(lane),
      host_(host),
      wanted_(wanted),
      task_(std::move(task)),
      inputs_(std::move(inputs)),
      results_(std::move(results)) {
  if (gpu_ != nullptr) ticket_ = gpu_->turns().line_up();
}

GpuOperation::~GpuOperation() {
  if (!has_enqueued_ || event_) return;
  // NCCL's work has to be aborted first, since the other ranks never join it.
  if (gpu_->communicator() != nullptr) gpu_->communicator()->abort();
  gpu_->wait_until_idle(Clock::now() + idle_timeout);
}

bool GpuOperation::advance() {
  bool moved = false;
  while (step_ != Step::done && take_step()) moved = true;
  return moved;
}

// Returns whether anything moved.
bool GpuOperation::take_step() {
  switch (step_) {
    case Step::turn: return take_turn();
    case Step::agree: return agree();
    case Step::connect:
      if (!poll()) return step_ == Step::done;
      way_ = gpu_->path().chosen() == GpuPath::nccl && task_->suits_nccl(*gpu_)
                 ? GpuTask::Way::nccl
                 : GpuTask::Way::staged;
      host_operation_ = task_->prepare(*gpu_, lane_, host_, way_);
      step_ = Step::prepare;
      return true;
    case Step::prepare: return prepare();
    case Step::memory: return agree_on_memory();
    case Step::enqueue:
      if (!poll()) return step_ == Step::done;
      return enqueue();
    case Step::launch:
      if (!is_launched()) return step_ == Step::done;
      finish(conclude());
      return true;
    case Step::stage: return stage();
    case Step::done: return false;
  }
  return false;
}

bool GpuOperation::take_turn() {
  if (gpu_ != nullptr && !gpu_->turns().is_turn_of(ticket_)) return false;
  step_ = gpu_ == nullptr || !gpu_->path().is_chosen() ? Step::agree : Step::connect;
  return true;
}

bool GpuOperation::waits_for_its_turn() const {
  if (step_ == Step::turn) return true;
  // The first copy from the GPU waits there for the application's own work.
  return step_ == Step::stage && on_host() == nullptr &&
         std::any_of(inputs_.begin(), inputs_.end(),
                     [](const auto& input) { return !input->is_over(); });
}

bool GpuOperation::agree() {
  if (!host_operation_) {
    begin("AGREE_ON_GPUS");
    if (gpu_ != nullptr) {
      info_ = gpu_->peer_info(lane_.rank == 0);
    } else {
      write_text(info_.problem, no_gpu);
    }
    infos_.resize(static_cast<std::size_t>(lane_.size()));
    const std::vector<std::int64_t> lengths(infos_.size(), sizeof(GpuPeerInfo));
    host_operation_ = host_.allgather(lane_, reinterpret_cast<const std::byte*>(&info_),
                                      reinterpret_cast<std::byte*>(infos_.data()), lengths);
  }
  const bool moved = host_operation_->advance();
  if (!host_operation_->done()) return moved;
  if (!take_host_result()) return true;
  if (Status status = settle(); !status.ok()) {
    finish(status);
  } else {
    step_ = Step::connect;
  }
  return true;
}

bool GpuOperation::take_host_result() {
  const Status status = host_operation_->status();
  host_operation_.reset();
  if (!status.ok()) finish(status);
  return status.ok();
}

Status GpuOperation::settle() {
  auto choice = choose_path(infos_, *lane_.members, wanted_);
  if (!choice) {
    failed_everywhere_ = true;  // all ranks reach the same result
    return choice.status();
  }
  return gpu_->settle(std::move(choice).value(), infos_, lane_.rank);
}

bool GpuOperation::prepare() {
  if (host_operation_) {
    const bool moved = host_operation_->advance();
    if (!host_operation_->done()) return moved;
    if (!take_host_result()) return true;
  }
  reserve();
  return true;
}

void GpuOperation::reserve() {
  std::optional<Status> own = results_;
  if (!own || own->ok()) {
    const auto reserved = task_->reserve(*gpu_, way_);
    if (reserved) own = reserved;
  }
  if (own) {
    begin("AGREE_ON_MEMORY");
    memory_.begin(*own);
    host_operation_ = memory_.next(lane_, host_);
  }
  step_ = Step::memory;
}

bool GpuOperation::agree_on_memory() {
  if (host_operation_) {
    const bool moved = host_operation_->advance();
    if (!host_operation_->done()) return moved;
    if (take_host_result()) host_operation_ = memory_.next(lane_, host_);
    if (host_operation_ || step_ == Step::done) return true;
  }
  Status status = memory_.verdict(lane_);
  if (!status.ok()) {
    failed_everywhere_ = true;
    task_->give_back(*gpu_);
  } else {
    status = task_->keep(*gpu_, way_);
    if (status.ok() && way_ == GpuTask::Way::staged) status = make_wait(gpu_->stream(), inputs_);
  }
  if (!status.ok()) {
    finish(status);
  } else if (way_ == GpuTask::Way::nccl) {
    step_ = Step::enqueue;
  } else {
    gpu_->path().warn_of_staging(lane_.rank);
    begin("STAGED");
    step_ = Step::stage;
  }
  return true;
}

bool GpuOperation::enqueue() {
  begin("NCCL");
  has_enqueued_ = true;
  surroundings_ = std::make_shared<Surroundings>(task_, *gpu_, lane_, std::move(inputs_));
  // `after` owns what both functions use.
  gpu_->communicator()->frame_next_call({[around = surroundings_.get()] { return around->begin(); },
                                         [around = surroundings_] { return around->end(); }});
  if (Status status = task_->enqueue(*gpu_, lane_); !status.ok()) {
    gpu_->communicator()->frame_next_call({});  // it is for another operation
    failed_everywhere_ = task_->failed_everywhere();
    has_enqueued_ = !failed_everywhere_;
    finish(status);
  } else {
    step_ = Step::launch;
  }
  return true;
}

bool GpuOperation::stage() {
  has_enqueued_ = true;
  // Makes the device current once, not around each call, and not while only the host is working.
  std::optional<CurrentDevice> current;
  if (on_host() == nullptr) current.emplace(*gpu_->gpu().device);
  if (current && !current->status().ok()) {
    finish(current->status());
    return true;
  }
  const auto moved = task_->advance_staged(*gpu_, lane_, host_);
  if (!moved) {
    finish(moved.status());
    return true;
  }
  if (task_->is_staged()) finish({});
  return *moved;
}

bool GpuOperation::poll() {
  if (gpu_->communicator() == nullptr) return true;
  const auto ready = gpu_->communicator()->poll();
  if (!ready) finish(ready.status());
  return ready && *ready;
}

// Usually done already, around NCCL's call; done here if there was none.
Status GpuOperation::conclude() {
  gpu_->communicator()->frame_next_call({});
  if (Status status = surroundings_->begin(); !status.ok()) return status;
  return surroundings_->end();
}

bool GpuOperation::is_launched() {
  const auto launched = task_->is_launched(*gpu_);
  if (!launched) finish(launched.status());
  return launched && *launched;
}

void GpuOperation::begin(std::string_view phase) {
  const Time now = Clock::now();
  if (!phases_.empty()) phases_.back().end = now;
  phases_.push_back({phase, now, now});
}

// After an error on this rank alone, the next operation must not begin: the other ranks have not
// reached it.
void GpuOperation::finish(const Status& status) {
  const Time now = Clock::now();
  status_ = status;
  if (status_.ok()) {
    auto event = surroundings_ ? Expected(surroundings_->event) : GpuEvent::after(gpu_->stream());
    if (event) {
      event_ = *event;
      gpu_->remember(event_, std::move(surroundings_ ? surroundings_->inputs : inputs_), now);
    } else {
      status_ = event.status();
    }
  }
  if (!phases_.empty()) phases_.back().end = now;
  step_ = Step::done;
  if (gpu_ != nullptr && (status_.ok() || failed_everywhere_)) gpu_->turns().end_turn();
}

const Operation* GpuOperation::on_host() const {
  return host_operation_ ? host_operation_.get() : task_->on_host();
}

std::vector<int> GpuOperation::awaited() const {
  if (const Operation* host = on_host()) return host->awaited();
  const bool awaits_nccl =
      step_ == Step::connect || step_ == Step::enqueue || step_ == Step::launch;
  std::vector<int> others;
  if (!awaits_nccl || gpu_->communicator() == nullptr) return others;
  for (int rank = 0; rank < lane_.size(); ++rank) {
    if (rank != lane_.rank) others.push_back(lane_.world_rank(rank));
  }
  return others;
}

bool GpuOperation::uses_transport() const {
  const Operation* host = on_host();
  return host != nullptr && host->uses_transport();
}

}  // namespace rueda
