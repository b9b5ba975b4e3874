#include "driver_state.h"

#include <atomic>
#include <cstdio>
#include <utility>

namespace rueda::test {

namespace {

constexpr std::uint64_t context_base = 0x7100'0000;
constexpr std::uint64_t stream_base = 0x7200'0000;
constexpr std::uint64_t event_base = 0x7300'0000;
constexpr std::uint64_t pool_base = 0x7400'0000;

template <class Handle>
Handle handle_of(std::uint64_t number) {
  return reinterpret_cast<Handle>(number);
}

}  // namespace

std::vector<CUcontext>& context_stack() {
  static thread_local std::vector<CUcontext> stack;
  return stack;
}

CUstreamCaptureMode& capture_mode() {
  static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

std::uint64_t number_of_this_thread() {
  static std::atomic<std::uint64_t> threads = 0;
  static thread_local const std::uint64_t number = ++threads;
  return number;
}

int& captures_of_this_thread() {
  static thread_local int captures = 0;
  return captures;
}

std::shared_ptr<Completion> Event::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

std::shared_ptr<Completion> Event::record() {
  const std::lock_guard lock(mutex_);
  recorded_ = std::make_shared<Completion>();
  graph_.reset();
  return recorded_;
}

void Event::record_in_graph(std::shared_ptr<const Graph> graph) {
  const std::lock_guard lock(mutex_);
  recorded_.reset();
  graph_ = std::move(graph);
}

std::shared_ptr<const Graph> Event::graph() const {
  const std::lock_guard lock(mutex_);
  return graph_;
}

DriverState& DriverState::instance() {
  static auto* state = new DriverState;
  return *state;
}

void DriverState::end_closed_streams() {
  std::vector<std::shared_ptr<Stream>> ending;  // ends without the lock, which steps may ask for
  const std::lock_guard lock(mutex_);
  ending.swap(closed_);
}

void DriverState::reset(const CudaSettings& settings) {
  end_closed_streams();
  std::vector<std::shared_ptr<Stream>> ending;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [device, stream] : default_streams_) ending.push_back(std::move(stream));
    default_streams_.clear();
  }
  ending.clear();  // waits for their steps, which may ask for what the mutex guards
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  calls_.clear();
  failures_.clear();
  failures_of_device_.clear();
  misuse_.clear();
  broken_.clear();
  relaxed_calls_ = 0;
  memory_.clear();
}

void DriverState::fail(const std::string& function, int nth, int code) {
  const std::lock_guard lock(mutex_);
  failures_[function][calls_[function] + nth] = code;
}

void DriverState::fail_on(int device, const std::string& function, int nth, int code) {
  const std::lock_guard lock(mutex_);
  failures_of_device_[{device, function}][nth] = code;
}

CUresult DriverState::planned_of_device(int device, const std::string& function) {
  const std::lock_guard lock(mutex_);
  const auto planned = failures_of_device_.find({device, function});
  if (planned == failures_of_device_.end()) return CUDA_SUCCESS;
  int code = CUDA_SUCCESS;
  std::map<int, int> still_to_come;
  for (const auto& [nth, failure] : planned->second) {
    if (nth == 1) code = failure;
    if (nth > 1) still_to_come[nth - 1] = failure;
  }
  planned->second = std::move(still_to_come);
  return static_cast<CUresult>(code);
}

void DriverState::begin_capture(StreamHandle handle, CaptureMode mode) {
  const auto found = find_stream(handle, current_device());
  if (!found || capture_of(handle)) return misused("a capture of what is none, or is captured");
  const std::lock_guard lock(mutex_);
  found->capture = std::make_shared<Graph>(found->queue->device());
  found->capture_mode = mode;
  if (mode == CaptureMode::global) ++global_captures_;
  if (mode != CaptureMode::relaxed) ++captures_of_this_thread();
}

CudaGraphReference DriverState::end_capture(StreamHandle handle) {
  const auto found = find_stream(handle, current_device());
  const bool may_end =
      found && (found->capture_mode == CaptureMode::relaxed || captures_of_this_thread() > 0);
  if (!capture_of(handle) || !may_end) {
    misused("the end of a capture that was not begun, or by another thread");
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (found->capture_mode == CaptureMode::global) --global_captures_;
  if (found->capture_mode != CaptureMode::relaxed) --captures_of_this_thread();
  return std::exchange(found->capture, nullptr);
}

int DriverState::relaxed_calls_while_capturing() {
  const std::lock_guard lock(mutex_);
  return relaxed_calls_;
}

void DriverState::launch(const CudaGraphReference& reference, StreamHandle handle) {
  const auto graph = std::dynamic_pointer_cast<Graph>(reference);
  const auto found = find_stream(handle, current_device());
  if (!graph || !found || found->queue->device() != graph->device() || capture_of(handle))
    return misused("a graph was launched where it cannot be");
  for (const Graph::Node& node : graph->nodes()) push_now(found, node());
}

std::shared_ptr<Graph> DriverState::capture_of(CUstream handle) {
  const auto found = find_stream(handle, current_device());
  const std::lock_guard lock(mutex_);
  return found ? found->capture : nullptr;
}

CUresult DriverState::forbid_while_capturing(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_relaxed = capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED;
    if (is_relaxed && captures_of_this_thread() > 0) ++relaxed_calls_;
    const bool of_others = capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL && global_captures_ > 0;
    if (is_relaxed || (!of_others && captures_of_this_thread() == 0)) return CUDA_SUCCESS;
  }
  misused(what + " while a stream is captured");
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

std::vector<std::string> DriverState::take_misuse() {
  end_closed_streams();
  const std::lock_guard lock(mutex_);
  return std::exchange(misuse_, {});
}

int DriverState::calls_of(const std::string& function) {
  const std::lock_guard lock(mutex_);
  return calls_[function];
}

int DriverState::calls() {
  const std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [function, count] : calls_) sum += count;
  return sum;
}

int DriverState::retained(int device) {
  const std::lock_guard lock(mutex_);
  return retained_[device];
}

void DriverState::misused(const std::string& what) {
  std::fprintf(stderr, "CUDA double: %s\n", what.c_str());
  const std::lock_guard lock(mutex_);
  misuse_.push_back(what);
}

CudaSettings DriverState::settings() {
  const std::lock_guard lock(mutex_);
  return settings_;
}

CUresult DriverState::begin(const std::string& function, bool needs_context) {
  {
    const std::lock_guard lock(mutex_);
    const int number = ++calls_[function];
    const auto& planned = failures_[function];
    const auto failure = planned.find(number);
    if (failure != planned.end()) return static_cast<CUresult>(failure->second);
  }
  const int device = current_device();
  if (const CUresult planned = planned_of_device(device, function); planned != CUDA_SUCCESS)
    return planned;
  if (!needs_context || device >= 0) return CUDA_SUCCESS;
  misused(function + " without a current context");
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult DriverState::retain(int device, CUcontext* context) {
  const std::lock_guard lock(mutex_);
  ++retained_[device];
  *context = handle_of<CUcontext>(context_base + static_cast<std::uint64_t>(device));
  return CUDA_SUCCESS;
}

CUresult DriverState::release(int device) {
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    known = retained_[device] > 0;
    if (known) --retained_[device];
  }
  if (known) return CUDA_SUCCESS;
  misused("a primary context was released that nobody had retained");
  return CUDA_ERROR_INVALID_CONTEXT;
}

int DriverState::device_of_context(CUcontext context) {
  const auto number = reinterpret_cast<std::uint64_t>(context) - context_base;
  const std::lock_guard lock(mutex_);
  const auto device = static_cast<int>(number);
  return number < 64 && retained_[device] > 0 ? device : -1;
}

int DriverState::current_device() {
  return context_stack().empty() ? -1 : device_of_context(context_stack().back());
}

void DriverState::use_device(int device) {
  context_stack().push_back(
      handle_of<CUcontext>(context_base + static_cast<std::uint64_t>(device)));
}

std::unique_ptr<Queue> DriverState::new_queue(int device) {
  const std::uint64_t seed = settings_.delay_seed;
  return std::make_unique<Queue>(device, seed == 0 ? 0 : seed * 1000 + ++handles_,
                                 settings_.max_delay_us);
}

CUmemoryPool DriverState::open_pool(int device) {
  const std::lock_guard lock(mutex_);
  const auto handle = handle_of<CUmemoryPool>(pool_base + ++handles_);
  pools_[handle] = device;
  return handle;
}

bool DriverState::close_pool(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  return pools_.erase(pool) > 0;
}

int DriverState::device_of_pool(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(pool);
  return found == pools_.end() ? -1 : found->second;
}

void DriverState::keep_pool_from_ordering_streams(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  pools_that_order_no_streams_.insert(pool);
}

bool DriverState::may_order_streams(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  return !pools_that_order_no_streams_.contains(pool);
}

std::size_t DriverState::pools() {
  const std::lock_guard lock(mutex_);
  return pools_.size();
}

CUstream DriverState::open_stream() {
  const int device = current_device();
  const std::lock_guard lock(mutex_);
  const auto handle = handle_of<CUstream>(stream_base + ++handles_);
  streams_[handle] = std::make_shared<Stream>(new_queue(device));
  return handle;
}

CUresult DriverState::close_stream(CUstream handle) {
  if (!stream(handle)) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return CUDA_ERROR_INVALID_HANDLE;  // a default stream
  found->second->queue->close();
  closed_.push_back(std::move(found->second));
  streams_.erase(found);
  return CUDA_SUCCESS;
}

std::shared_ptr<Stream> DriverState::find_stream(CUstream handle, int device) {
  const std::lock_guard lock(mutex_);
  if (reinterpret_cast<std::uint64_t>(handle) <= 2 && device >= 0) {
    const bool is_of_thread = handle == CU_STREAM_PER_THREAD;
    auto& found = default_streams_[{device, is_of_thread ? number_of_this_thread() : 0}];
    if (!found) found = std::make_shared<Stream>(new_queue(device));
    return found;
  }
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

std::shared_ptr<Stream> DriverState::stream(CUstream handle) {
  auto found = find_stream(handle, current_device());
  if (!found) misused("a stream that does not exist, or not any more");
  return found;
}

CUevent DriverState::open_event() {
  const int device = current_device();
  const std::lock_guard lock(mutex_);
  const auto handle = handle_of<CUevent>(event_base + ++handles_);
  events_[handle] = std::make_shared<Event>(device);
  return handle;
}

CUresult DriverState::close_event(CUevent handle) {
  if (!event(handle)) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(mutex_);
  events_.erase(handle);
  return CUDA_SUCCESS;
}

std::shared_ptr<Event> DriverState::event(CUevent handle) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(handle);
    if (found != events_.end()) return found->second;
  }
  misused("an event that does not exist, or not any more");
  return nullptr;
}

CUresult DriverState::failure_of(int device) {
  const std::lock_guard lock(mutex_);
  const auto found = broken_.find(device);
  return found == broken_.end() ? CUDA_SUCCESS : found->second;
}

CUresult DriverState::push(CUstream handle, Queue::Step step) {
  return push_each(handle, [step = std::move(step)] { return step; });
}

CUresult DriverState::push_each(CUstream handle, MakeStep make) {
  const auto found = stream(handle);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult broken = failure_of(found->queue->device()); broken != CUDA_SUCCESS)
    return broken;
  if (const auto graph = capture_of(handle)) {
    graph->add(std::move(make));
  } else {
    push_now(found, make());
  }
  return CUDA_SUCCESS;
}

void DriverState::push_now(const std::shared_ptr<Stream>& stream, Queue::Step step) {
  stream->queue->push([this, device = stream->queue->device(), step = std::move(step)] {
    try {
      step();
    } catch (const std::exception& error) {
      misused(error.what());
      const std::lock_guard lock(mutex_);
      broken_[device] = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  });
}

bool DriverState::enqueue(StreamHandle handle, std::function<void()> step) {
  return push(handle, std::move(step)) == CUDA_SUCCESS;
}

bool DriverState::enqueue_each(StreamHandle handle, MakeStep make) {
  return push_each(handle, std::move(make)) == CUDA_SUCCESS;
}

int DriverState::device_of_stream(StreamHandle handle) {
  const auto found = find_stream(handle, current_device());
  return found ? found->queue->device() : -1;
}

std::byte* DriverState::reach(const void* address, std::size_t bytes) {
  const auto number = reinterpret_cast<std::uint64_t>(address);
  const bool is_device = memory_.device_of(number) >= 0;
  return is_device && memory_.is_there(number, bytes) ? Memory::host_address(number) : nullptr;
}

}  // namespace rueda::test

extern "C" rueda::test::CudaDouble* rueda_cuda_double() {
  return &rueda::test::DriverState::instance();
}
