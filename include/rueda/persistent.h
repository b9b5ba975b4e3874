// An allreduce that runs many times on the same memory: negotiated once, then only run.
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
// Where all ranks of the set are on one host it runs in the calling thread, through shared memory
// of its own; nobody else is asked. Elsewhere it is a named operation like any other.
//
// On a GPU that NCCL serves, start() enqueues the run on a stream of the application and returns:
// the stream's order does the rest, and the run may be captured into a CUDA graph:
//
//   rueda::Allreduce sum({gradient, {1000}, rueda::DataType::float32, device, stream});
//   sum.start(stream);            // once before, so that NCCL has what it needs
//   sum.wait();
//   cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
//   ...                           // writes gradient on the stream
//   sum.start(stream);
//   sum.wait();
//   cudaStreamEndCapture(stream, &graph);
//
// The ranks start a set's operations, and launch graphs that hold them, in the same order. A graph
// must be destroyed before the operations that it holds, and those before shutdown() or their set's
// end.
#pragma once

#include <memory>

#include "rueda/rueda.h"

namespace rueda {

class PersistentRun;
// In a child made by fork() it does nothing: what a run uses is not there.
struct PersistentRunEnd {
  void operator()(PersistentRun* run) const noexcept;
};

// One that was moved from may only be destroyed or assigned to.
class Allreduce {
 public:
  // Collective over the set: every rank gives the same shape, dtype, operation and factors, under
  // the same name (unnamed ones match by their number). `tensor` is reduced in place, and must stay
  // where it is; memory from rueda::allocate() is the fastest. Throws MismatchError and the like,
  // as allreduce() does.
  explicit Allreduce(const TensorView& tensor, const AllreduceOptions& options = {});
  Allreduce(const TensorView& input, void* output, const AllreduceOptions& options = {});
  // Waits, where it is running, until no other rank touches the tensor any more; for graphs it does
  // not.
  ~Allreduce();
  Allreduce(Allreduce&&) noexcept;
  Allreduce& operator=(Allreduce&&) noexcept;

  // The tensor is ready. Does not wait for the result; but on a GPU until NCCL has enqueued the
  // run, before the first of which it connects all ranks. Throws InvalidArgumentError where neither
  // wait() has returned nor done() said yes since the last start; ShutdownError and PeerLostError
  // once the world is over or broken; on a GPU NCCL's errors, and UnsupportedError where the stream
  // is being captured into a graph and the run goes through the host's memory.
  void start();
  // The same for what `stream` has enqueued so far, which finds the result afterwards: of the
  // tensor's device; instead of that in the TensorView. On tensors of the host as start().
  void start(void* stream);
  // Goes on without blocking; whether the result is there, or on a GPU all has been enqueued.
  // Throws the run's error.
  [[nodiscard]] bool done();
  // Blocks until then; the stream of the run finds the result. Throws PeerLostError, TimeoutError
  // (naming the ranks that have not come; see the option transfer_timeout), ShutdownError.
  void wait();

 private:
  std::unique_ptr<PersistentRun, PersistentRunEnd> run_;
};

}  // namespace rueda
