// An allreduce that runs many times on the same memory and is negotiated only once.
//
//   rueda::Allreduce sum({gradient.data(), {1000}, rueda::DataType::float32},
//                        {.name = "loss", .op = rueda::ReduceOp::sum});
//   for (...) {
//     ...                      // writes gradient
//     sum.start();
//     ...                      // must not touch it
//     sum.wait();              // gradient holds the sum
//   }
//
// If all ranks of the set are on one host, it runs in the calling thread, through shared memory of
// its own, without negotiation. Otherwise it is a named operation like any other.
//
// On a GPU that NCCL serves, start() enqueues the run on a stream of the application and returns.
// Stream order does the rest, and the run may be captured into a CUDA graph:
//
//   rueda::Allreduce sum({gradient, {1000}, rueda::DataType::float32, device, stream});
//   sum.start(stream);            // once before capture, so that NCCL sets up what it needs
//   sum.wait();
//   cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
//   ...                           // writes gradient on the stream
//   sum.start(stream);
//   sum.wait();
//   cudaStreamEndCapture(stream, &graph);
//
// All ranks must start a set's operations, and launch graphs that contain them, in the same order.
// Destroy a graph before the operations that it contains, and those before shutdown() or the end of
// their set.
#pragma once

#include <memory>

#include "rueda/rueda.h"

namespace rueda {

class PersistentRun;
// Ends a run, but not in a child made by fork(), where what the run uses does not exist.
struct PersistentRunEnd {
  void operator()(PersistentRun* run) const noexcept;
};

// A persistent allreduce. A moved-from one may only be destroyed or assigned to.
class Allreduce {
 public:
  // Collective over the set: every rank gives the same shape, dtype, operation and factors, under
  // the same name (unnamed operations match by their number). `tensor` is reduced in place and must
  // not move; memory from rueda::allocate() is the fastest. Throws MismatchError and the like, as
  // allreduce() does.
  explicit Allreduce(const TensorView& tensor, const AllreduceOptions& options = {});
  Allreduce(const TensorView& input, void* output, const AllreduceOptions& options = {});
  // If a run is in progress, finishes it: the other ranks count on this one's part. Gives up after
  // 5 s, with a warning, as where they have not started it, and then waits only until none of them
  // touches the tensor. Ranks that drop several during their runs do so in the order in which the
  // others wait for them. Does not wait for graphs.
  ~Allreduce();
  Allreduce(Allreduce&&) noexcept;
  Allreduce& operator=(Allreduce&&) noexcept;

  // The tensor is ready. Does not wait for the result; on a GPU it waits until NCCL has enqueued
  // the run, and the first run connects all ranks. Throws InvalidArgumentError if since the last
  // start neither wait() has returned nor done() has returned true; ShutdownError and PeerLostError
  // once the world has ended or broken; on a GPU, NCCL's errors, and UnsupportedError if the stream
  // is being captured into a graph and the run goes through host memory.
  void start();
  // The same, ordered after what `stream` has enqueued so far; later work on the stream sees the
  // result. `stream` belongs to the tensor's device and replaces the TensorView's stream. For host
  // tensors the same as start().
  void start(void* stream);
  // Makes progress without blocking. True once the result is there or, on a GPU, once everything
  // is enqueued. Throws the run's error.
  [[nodiscard]] bool done();
  // Blocks until done; the run's stream then sees the result. Throws PeerLostError, TimeoutError
  // (which names the ranks that are missing; see the option transfer_timeout), ShutdownError.
  void wait();

 private:
  std::unique_ptr<PersistentRun, PersistentRunEnd> run_;
};

}  // namespace rueda
