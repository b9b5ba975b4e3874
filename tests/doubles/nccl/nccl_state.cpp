#include "nccl_state.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>

namespace rueda::test {

thread_local int NcclState::group_depth = 0;
thread_local std::vector<Step> NcclState::group;
thread_local std::string NcclState::last_error;

NcclState& NcclState::instance() {
  static auto* state = new NcclState;
  return *state;
}

void NcclState::reset(const NcclSettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  calls_.clear();
  failures_.clear();
  counts_.clear();
  hanging_.clear();
  blocking_.clear();
  misuse_.clear();
  meetings_.clear();
  back_pressured_calls_ = 0;
  ends_connecting_ = false;
  held_ = false;
}

std::vector<NcclCall> NcclState::calls(int rank) {
  const std::lock_guard lock(mutex_);
  return calls_[rank];
}

void NcclState::fail(const std::string& function, int rank, int nth, nccl::Result code,
                     const std::string& text) {
  const std::lock_guard lock(mutex_);
  failures_[{function, rank}][counts_[{function, rank}] + nth] = {code, text};
}

void NcclState::break_communicators(int rank, nccl::Result code, const std::string& text) {
  std::vector<CommunicatorReference> broken;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, communicator] : communicators_) {
      if (communicator->rank == rank) broken.push_back(communicator);
    }
  }
  for (const auto& communicator : broken) break_one(communicator, code, text);
}

void NcclState::break_one(const CommunicatorReference& communicator, nccl::Result code,
                          const std::string& text) {
  const std::lock_guard lock(communicator->mutex);
  if (communicator->error != nccl::success) return;
  communicator->error = code;
  communicator->error_text = text;
}

void NcclState::hang(int rank) {
  const std::lock_guard lock(mutex_);
  hanging_.insert(rank);
}

void NcclState::block(int rank) {
  const std::lock_guard lock(mutex_);
  blocking_.insert(rank);
}

bool NcclState::blocks(const Communicator& communicator) {
  {
    const std::lock_guard lock(mutex_);
    if (blocking_.erase(communicator.rank) == 0) return false;
  }
  ++blocked_calls_;
  while (!communicator.given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --blocked_calls_;
  last_error = "the communicator was aborted";
  return true;
}

bool NcclState::hangs(const Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  return hanging_.erase(communicator.rank) > 0;
}

std::vector<std::string> NcclState::take_misuse() {
  const std::lock_guard lock(mutex_);
  return std::exchange(misuse_, {});
}

int NcclState::communicators() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(communicators_.size());
}

std::vector<CommunicatorReference> NcclState::all_communicators() {
  const std::lock_guard lock(mutex_);
  std::vector<CommunicatorReference> all;
  for (const auto& [handle, communicator] : communicators_) all.push_back(communicator);
  return all;
}

int NcclState::registrations() {
  std::size_t count = 0;
  for (const auto& communicator : all_communicators()) {
    const std::lock_guard lock(communicator->mutex);
    count += communicator->registrations.size();
  }
  return static_cast<int>(count);
}

bool NcclState::is_registered(const void* memory) {
  const auto all = all_communicators();
  return std::any_of(all.begin(), all.end(), [&](const CommunicatorReference& communicator) {
    const std::lock_guard lock(communicator->mutex);
    return communicator->registrations.contains(const_cast<void*>(memory)) ||
           communicator->registrations.contains(window_of(memory));
  });
}

NcclSettings NcclState::settings() {
  const std::lock_guard lock(mutex_);
  return settings_;
}

nccl::Result NcclState::refuse(const std::string& what) {
  std::fprintf(stderr, "NCCL double: %s\n", what.c_str());
  last_error = what;
  const std::lock_guard lock(mutex_);
  misuse_.push_back(what);
  return nccl::invalid_usage;
}

std::shared_ptr<Meeting> NcclState::meeting(const nccl::UniqueId& id, int size) {
  const std::lock_guard lock(mutex_);
  auto& found = meetings_[std::string(id.internal, sizeof(id.internal))];
  if (!found) found = std::make_shared<Meeting>(size);
  return found;
}

nccl::Comm NcclState::add(CommunicatorReference communicator) {
  const std::lock_guard lock(mutex_);
  const auto handle = reinterpret_cast<nccl::Comm>(communicator.get());
  communicators_[handle] = std::move(communicator);
  return handle;
}

CommunicatorReference NcclState::find(nccl::Comm handle) {
  const std::lock_guard lock(mutex_);
  const auto found = communicators_.find(handle);
  return found == communicators_.end() ? nullptr : found->second;
}

void NcclState::remove(nccl::Comm handle) {
  const std::lock_guard lock(mutex_);
  communicators_.erase(handle);
}

nccl::Result NcclState::planned(const std::string& function, int rank) {
  const std::lock_guard lock(mutex_);
  const auto key = std::pair(function, rank);
  const int number = ++counts_[key];
  const auto failure = failures_[key].find(number);
  if (failure == failures_[key].end()) return nccl::success;
  last_error = failure->second.text;
  return failure->second.code;
}

nccl::Result NcclState::begin(const NcclCall& call, const CommunicatorReference& communicator) {
  if (!communicator) return refuse(call.function + " of a communicator that does not exist");
  {
    const std::lock_guard lock(mutex_);
    calls_[call.rank].push_back(call);
  }
  if (const nccl::Result failure = planned(call.function, call.rank); failure != nccl::success)
    return failure;
  if (CudaDouble& cuda = *rueda_cuda_double(); cuda.current_device() != communicator->device)
    return refuse(call.function + " while another device, or none, is current");
  if (communicator->in_progress) return refuse(call.function + " while NCCL is in progress");
  if (communicator->in_call > 0)
    return refuse(call.function + " while another thread is in a call of the communicator");
  const std::lock_guard lock(communicator->mutex);
  if (communicator->error == nccl::success) return nccl::success;
  last_error = communicator->error_text;
  return communicator->error;
}

void NcclState::take_time(const Communicator& communicator) {
  if (communicator.meeting->size() < 2) return;
  while (held_ && !communicator.given_up)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  pass_time();
}

void NcclState::pass_time() {
  const int longest = settings().max_call_us;
  thread_local std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<int> durations(0, longest);
  std::this_thread::sleep_for(std::chrono::microseconds(durations(random)));
}

nccl::Result NcclState::connect(Communicator& communicator) {
  const InCall in_call(communicator);
  communicator.connecting = true;
  communicator.meeting->join();
  while (!communicator.meeting->is_complete() && !ends_connecting_)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  take_time(communicator);
  communicator.connecting = false;
  if (communicator.meeting->is_complete()) return nccl::success;
  last_error = "socketAccept: Connection closed by remote peer";
  return nccl::system_error;
}

int NcclState::connecting() {
  const auto all = all_communicators();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [](const auto& communicator) {
    return communicator->connecting.load();
  }));
}

nccl::Result NcclState::launch(Step step) {
  if (group_depth > 0) {
    group.push_back(std::move(step));
    return nccl::success;
  }
  std::vector<Step> alone;
  alone.push_back(std::move(step));
  return launch_all(std::move(alone));
}

// Counts as one of the communicator's operations in graphs for as long as a copy of it exists. What
// a stream runs at once is copied no longer than that takes.
std::shared_ptr<void> reference_of_graph(const CommunicatorReference& communicator) {
  ++communicator->captured;
  return {nullptr, [communicator](void*) { --communicator->captured; }};
}

nccl::Result NcclState::work_for(const CommunicatorReference& communicator, Work work) {
  if (communicator->blocking) return work();
  communicator->in_progress = true;
  std::thread([this, communicator, work = std::move(work)] {
    if (communicator->device >= 0) rueda_cuda_double()->use_device(communicator->device);
    pass_time();
    if (const nccl::Result result = work(); result != nccl::success)
      break_one(communicator, result, last_error);
    communicator->in_progress = false;
  }).detach();
  return nccl::in_progress;
}

nccl::Result NcclState::launch_all(std::vector<Step> steps) {
  if (steps.empty()) return nccl::success;
  const CommunicatorReference first = steps.front().communicator;
  const bool alike = std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
    return first->blocking ? step.communicator->blocking : step.communicator == first;
  });
  if (!alike) return refuse("a group of communicators that block and others that do not");
  return work_for(first, [this, steps = std::move(steps)] { return launch_now(steps); });
}

// One step of a stream for all that a group has for a communicator and a stream.
nccl::Result NcclState::launch_now(std::vector<Step> steps) {
  std::stable_partition(steps.begin(), steps.end(), [](const Step& step) { return step.first; });
  while (!steps.empty()) {
    const CommunicatorReference owner = steps.front().communicator;
    const InCall in_call(*owner);
    take_time(*owner);
    bool has_waited = false;
    while (owner->running >= settings().max_running && !owner->given_up) {
      if (!std::exchange(has_waited, true)) ++back_pressured_calls_;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (owner->given_up) {
      last_error = "the communicator was aborted";
      return nccl::system_error;
    }
    const StreamHandle stream = steps.front().stream;
    const auto rest = std::stable_partition(steps.begin(), steps.end(), [&](const Step& step) {
      return step.communicator == owner && step.stream == stream;
    });
    const std::vector<Step> together(std::make_move_iterator(steps.begin()),
                                     std::make_move_iterator(rest));
    steps.erase(steps.begin(), rest);
    const auto make = [owner, together, hanging = hangs(*owner),
                       reference = reference_of_graph(owner)] {
      ++owner->running;
      std::vector<std::uint64_t> numbers;
      for (const Step& step : together)
        numbers.push_back(step.meets_all ? ++owner->collectives : 0);
      return [owner, together, hanging, numbers] {
        while (hanging && !owner->given_up)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (std::size_t i = 0; i < together.size(); ++i) {
          if (!owner->given_up) together[i].run(numbers[i]);
        }
        --owner->running;
      };
    };
    rueda_cuda_double()->enqueue_each(stream, make);
  }
  return nccl::success;
}

}  // namespace rueda::test

extern "C" rueda::test::NcclDouble* rueda_nccl_double() {
  return &rueda::test::NcclState::instance();
}
