// An all-reduce that runs many times on the same memory: negotiated once, then only run.
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
#pragma once

#include <memory>

#include "rueda/rueda.h"

namespace rueda {

class PersistentRun;

class Allreduce {
 public:
  // Collective over the set: every rank gives the same shape, dtype, operation and factors, under
  // the same name (unnamed ones match by their number). `tensor` is reduced in place, and must stay
  // where it is; memory from rueda::allocate() is the fastest. Throws MismatchError and the like,
  // as allreduce() does.
  explicit Allreduce(const TensorView& tensor, const AllreduceOptions& options = {});
  Allreduce(const TensorView& input, void* output, const AllreduceOptions& options = {});
  // Waits, where it is running, until no other rank touches the tensor any more.
  ~Allreduce();
  Allreduce(Allreduce&&) noexcept;
  Allreduce& operator=(Allreduce&&) noexcept;

  // The tensor is ready. Does not wait. Throws InvalidArgumentError where neither wait() has
  // returned nor done() said yes since the last start; ShutdownError and PeerLostError once the
  // world is over or broken.
  void start();
  // Goes on without blocking; whether the result is there. Throws the run's error.
  [[nodiscard]] bool done();
  // Blocks until the result is there. Throws PeerLostError, TimeoutError (naming the ranks that
  // have not come; see the option transfer_timeout), ShutdownError.
  void wait();

 private:
  std::unique_ptr<PersistentRun> run_;
};

}  // namespace rueda
