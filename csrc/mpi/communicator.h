// A duplicate of MPI_COMM_WORLD, which keeps Rueda's messages apart from the application's.
#pragma once

#include <mpi.h>

#include <string>
#include <utility>

#include "core/clock.h"
#include "core/status.h"

namespace rueda::mpi {

[[nodiscard]] bool is_finalized();

// Tests `request` until it is complete, sleeping in between; only for set-up.
// ErrorCode::initialization at the deadline; MPI then still owns the request and its buffers, which
// must never be freed.
Status await(MPI_Request& request, Time deadline, const std::string& doing);

class Communicator {
 public:
  // Collective, with a deadline.
  static Expected<Communicator> duplicate_world(Time deadline, const std::string& purpose);

  Communicator(Communicator&& other) noexcept
      : handle_(std::exchange(other.handle_, MPI_COMM_NULL)),
        rank_(other.rank_),
        size_(other.size_) {}
  Communicator& operator=(Communicator&&) = delete;
  // Frees the duplicate, without waiting for anyone in Open MPI, unless MPI is finalised.
  ~Communicator();

  // Prevents that: for a communicator with operations that will not complete.
  void abandon() { handle_ = MPI_COMM_NULL; }

  [[nodiscard]] MPI_Comm get() const { return handle_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

 private:
  explicit Communicator(MPI_Comm handle);

  MPI_Comm handle_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace rueda::mpi
