// Converts MPI's error codes to Status.
#pragma once

#include <mpi.h>

#include <string>

#include "core/status.h"

namespace rueda::mpi {

// "`doing`: MPI's error text". A dead peer (MPIX_ERR_PROC_FAILED) gives ErrorCode::peer_lost,
// everything else `otherwise`.
[[nodiscard]] Status failure(int code, const std::string& doing, int peer = -1,
                             ErrorCode otherwise = ErrorCode::transport);

// Makes MPI return errors on MPI_COMM_WORLD instead of ending the process, during this object's
// lifetime. Then restores the application's own handler.
class WorldReturnsErrors {
 public:
  WorldReturnsErrors();
  ~WorldReturnsErrors();
  WorldReturnsErrors(const WorldReturnsErrors&) = delete;
  WorldReturnsErrors& operator=(const WorldReturnsErrors&) = delete;

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

}  // namespace rueda::mpi
