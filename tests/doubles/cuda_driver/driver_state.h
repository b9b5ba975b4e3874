// What the entry points of the double share: devices, streams, events, and what tests have asked
// for.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_double.h"
#include "graph.h"
#include "memory.h"
#include "queue.h"

namespace rueda::test {

struct Stream {
  explicit Stream(std::unique_ptr<Queue> its_queue) : queue(std::move(its_queue)) {}
  std::unique_ptr<Queue> queue;
  // Null while it is not captured; under the state's mutex.
  std::shared_ptr<Graph> capture;
  CudaDouble::CaptureMode capture_mode{};
};

class Event {
 public:
  explicit Event(int device) : device_(device) {}
  [[nodiscard]] int device() const { return device_; }
  // What was recorded last; null before the first time.
  [[nodiscard]] std::shared_ptr<Completion> recorded() const;
  // Begins anew, and returns what is to be set.
  std::shared_ptr<Completion> record();
  // In a stream that is captured: a place in the graph, of which the host must not ask.
  void record_in_graph(std::shared_ptr<const Graph> graph);
  [[nodiscard]] std::shared_ptr<const Graph> graph() const;

 private:
  const int device_;
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> recorded_;
  std::shared_ptr<const Graph> graph_;  // in which it was recorded last, if in one
};

class DriverState final : public CudaDouble {
 public:
  // Never destroyed: streams of other libraries may still run when the process ends.
  static DriverState& instance();

  void reset(const CudaSettings& settings) override;
  void fail(const std::string& function, int nth, int code) override;
  void fail_on(int device, const std::string& function, int nth, int code) override;
  void begin_capture(StreamHandle stream, CaptureMode mode) override;
  CudaGraphReference end_capture(StreamHandle stream) override;
  int relaxed_calls_while_capturing() override;
  void launch(const CudaGraphReference& graph, StreamHandle stream) override;
  std::vector<std::string> take_misuse() override;
  int calls_of(const std::string& function) override;
  int calls() override;
  int retained(int device) override;
  std::size_t allocations() override { return memory_.allocations(); }
  std::size_t pools() override;
  bool enqueue(StreamHandle stream, std::function<void()> step) override;
  bool enqueue_each(StreamHandle stream, MakeStep make) override;
  int device_of_stream(StreamHandle stream) override;
  std::byte* reach(const void* address, std::size_t bytes) override;
  void change_uses(const void* address, int by) override {
    memory_.change_uses(reinterpret_cast<std::uintptr_t>(address), by);
  }
  void misused(const std::string& what) override;

  [[nodiscard]] CudaSettings settings();
  [[nodiscard]] Memory& memory() { return memory_; }
  // Counts a call and says what it must return: 0 to go on. `needs_context` where a device has to
  // be current.
  CUresult begin(const std::string& function, bool needs_context = true);
  CUresult planned_of_device(int device, const std::string& function);

  CUresult retain(int device, CUcontext* context);
  CUresult release(int device);
  // -1 where it is no context.
  int device_of_context(CUcontext context);
  int current_device() override;
  void use_device(int device) override;

  CUmemoryPool open_pool(int device);
  bool close_pool(CUmemoryPool pool);
  // -1 where it is none.
  int device_of_pool(CUmemoryPool pool);
  // Until it is told otherwise a pool may make a stream that allocates wait for one that frees.
  void keep_pool_from_ordering_streams(CUmemoryPool pool);
  bool may_order_streams(CUmemoryPool pool);

  CUstream open_stream();
  CUresult close_stream(CUstream stream);
  // Null, and a misuse, where it does not exist. The default stream exists on every device.
  std::shared_ptr<Stream> stream(CUstream handle);
  CUevent open_event();
  CUresult close_event(CUevent event);
  std::shared_ptr<Event> event(CUevent handle);
  CUresult push(CUstream handle, Queue::Step step);
  CUresult push_each(CUstream handle, MakeStep make);
  // The graph into which a stream is captured; null where it is not.
  std::shared_ptr<Graph> capture_of(CUstream handle);
  // Success where this thread may do what captures forbid.
  CUresult forbid_while_capturing(const std::string& what);
  // What a step of this device has failed with, for good.
  CUresult failure_of(int device);

 private:
  std::unique_ptr<Queue> new_queue(int device);
  // Waits for the steps of streams that have been closed.
  void end_closed_streams();
  std::shared_ptr<Stream> find_stream(CUstream handle, int device);
  void push_now(const std::shared_ptr<Stream>& stream, Queue::Step step);

  std::mutex mutex_;
  CudaSettings settings_;
  Memory memory_;
  std::map<std::string, int> calls_;
  std::map<std::string, std::map<int, int>> failures_;  // by function and number of the call
  // By device, too: how many calls are still to come before they fail.
  std::map<std::pair<int, std::string>, std::map<int, int>> failures_of_device_;
  std::vector<std::string> misuse_;
  std::map<int, int> retained_;
  std::map<int, CUresult> broken_;
  std::map<CUmemoryPool, int> pools_;  // their devices
  std::set<CUmemoryPool> pools_that_order_no_streams_;
  std::map<CUstream, std::shared_ptr<Stream>> streams_;
  // By device and thread: 0 for the one that all threads share.
  std::map<std::pair<int, std::uint64_t>, std::shared_ptr<Stream>> default_streams_;
  std::vector<std::shared_ptr<Stream>> closed_;
  std::map<CUevent, std::shared_ptr<Event>> events_;
  std::uint64_t handles_ = 0;
  int global_captures_ = 0;  // under way
  int relaxed_calls_ = 0;
};

// The contexts that the calling thread has pushed.
std::vector<CUcontext>& context_stack();
// Its capture mode.
CUstreamCaptureMode& capture_mode();

}  // namespace rueda::test
