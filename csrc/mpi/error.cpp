#include "mpi/error.h"

#include <array>

#include "core/strings.h"

namespace rueda::mpi {

namespace {

// From fault-tolerant MPI (ULFM). Open MPI 4.1 never returns this class and does not define it, but
// a plug-in built with 4.1 may run with 5.0, which has the same ABI.
constexpr int process_failed = 75;
#ifdef MPI_ERR_PROC_FAILED
static_assert(process_failed == MPI_ERR_PROC_FAILED);
#endif

int class_of(int code) {
  int result = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &result);
  return result;
}

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return str("MPI error ", code);
  }
  return std::string(text.data(), static_cast<std::size_t>(length));
}

}  // namespace

Status failure(int code, const std::string& doing, int peer, ErrorCode otherwise) {
  const bool lost = class_of(code) == process_failed;
  return Status(lost ? ErrorCode::peer_lost : otherwise, str(doing, ": ", text_of(code)), peer);
}

WorldReturnsErrors::WorldReturnsErrors() {
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

WorldReturnsErrors::~WorldReturnsErrors() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
  MPI_Errhandler_free(&before_);
}

}  // namespace rueda::mpi
