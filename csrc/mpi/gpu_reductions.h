// All-reductions of memory of GPUs by an MPI that takes its addresses.
#pragma once

#include <mpi.h>

#include <memory>

#include "transport/transport.h"

namespace rueda::mpi {

// One after the other, by MPI_Allreduce on a thread of its own: an Open MPI that was built with
// CUDA does not take such memory in MPI_Iallreduce (its documentation's list of what does not work
// with CUDA). Used by one thread at a time.
class GpuReductions {
 public:
  // The communicator stays with the caller, who frees it only where nothing was left behind.
  explicit GpuReductions(MPI_Comm communicator);
  // Gives up.
  ~GpuReductions();
  GpuReductions(const GpuReductions&) = delete;
  GpuReductions& operator=(const GpuReductions&) = delete;

  // As Transport::allreduce().
  Ticket start(const GpuMemory& memory, std::int64_t count, DataType dtype, ReduceOp op);
  // Completes the tickets of what is done; returns whether there were any.
  bool collect();
  // Completes all tickets, these and those to come. What MPI is at goes on, for ever perhaps.
  void give_up(const Status& reason);
  // Whether MPI is at something, or has told of an error.
  [[nodiscard]] bool leaves_something() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // with the thread, which may be left behind
};

// Whether a thread is left in a call of MPI that does not return: MPI_Finalize would not either.
[[nodiscard]] bool has_left_a_thread();

// Whether MPI takes memory of CUDA's, as far as it tells; what to do where it does not.
[[nodiscard]] Status takes_cuda_memory();

}  // namespace rueda::mpi
