// Stands in for the CUDA driver where there is no GPU: device memory is host memory under addresses
// that the host cannot use, streams are queues with a thread each, kernels run as plain C++.
//
// What a real driver forgives or punishes at random is recorded as misuse: a test asks for it at
// its end. With delays, a stream that does not wait for what it needs computes wrong results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/handles.h"

namespace rueda::test {

struct CudaSettings {
  int version = 13000;  // read when the library is loaded
  int devices = 2;
  int compute_capability = 90;
  bool loads_modules = true;     // or refuses them, as a driver that is too old for them
  bool memory_pools = true;      // whether memory is allocated and freed in the order of streams
  std::uint64_t delay_seed = 0;  // 0 for no delays
  int max_delay_us = 300;        // before each step of a stream
};

// What was captured.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;  // nodes
};
using CudaGraphReference = std::shared_ptr<CudaGraph>;

class CudaDouble {
 public:
  // Waits for all streams, forgets memory, misuse, failures and counts, and takes the settings.
  virtual void reset(const CudaSettings& settings = {}) = 0;
  // The `nth` call of `function` from now on (1 is the next) returns `code`, a CUresult.
  virtual void fail(const std::string& function, int nth, int code) = 0;
  // Only of those while `device` is current: of one rank, where each has a device.
  virtual void fail_on(int device, const std::string& function, int nth, int code) = 0;
  // From now on what `stream` is given becomes part of a graph, by any thread. In the mode
  // `global`, torch's, no thread that is not in the relaxed mode itself may allocate, free or ask
  // for events meanwhile; `thread`: this one may not; `relaxed`: all may.
  enum class CaptureMode { global, thread, relaxed };
  virtual void begin_capture(StreamHandle stream, CaptureMode mode = CaptureMode::global) = 0;
  // How often threads with a capture of their own have done so in the relaxed mode.
  virtual int relaxed_calls_while_capturing() = 0;
  // By the same thread.
  virtual CudaGraphReference end_capture(StreamHandle stream) = 0;
  // Its nodes are run by `stream`, one after the other.
  virtual void launch(const CudaGraphReference& graph, StreamHandle stream) = 0;
  // What has gone wrong since the last time, and forgets it. Streams that have been closed come to
  // their end first.
  virtual std::vector<std::string> take_misuse() = 0;
  virtual int calls_of(const std::string& function) = 0;
  virtual int calls() = 0;  // of all functions
  virtual int retained(int device) = 0;
  virtual std::size_t allocations() = 0;  // of device memory, that are not freed
  virtual std::size_t pools() = 0;        // that are not destroyed

  // For the double of NCCL and for tests that need a slow step: runs `step` on a stream. False for
  // a stream that does not exist.
  virtual bool enqueue(StreamHandle stream, std::function<void()> step) = 0;
  // The same for what is another step each time that a graph is launched: `make` is called at once,
  // or at each launch of the graph into which the stream is captured.
  using MakeStep = std::function<std::function<void()>()>;
  virtual bool enqueue_each(StreamHandle stream, MakeStep make) = 0;
  virtual int current_device() = 0;  // of the calling thread; -1 for none
  // For a thread of NCCL's own, for as long as that lives.
  virtual void use_device(int device) = 0;
  virtual int device_of_stream(StreamHandle stream) = 0;
  // Memory of the host behind an address of a device, or null where [address, address + bytes) is
  // none.
  virtual std::byte* reach(const void* address, std::size_t bytes) = 0;
  // It is in use (+1), or not any more (-1): freeing it meanwhile is a misuse.
  virtual void change_uses(const void* address, int by) = 0;
  virtual void misused(const std::string& what) = 0;

 protected:
  ~CudaDouble() = default;
};

}  // namespace rueda::test

extern "C" rueda::test::CudaDouble* rueda_cuda_double();
