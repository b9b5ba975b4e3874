#include "mpi/communicator.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "core/strings.h"
#include "mpi/error.h"

namespace rueda::mpi {

using namespace std::chrono_literals;

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

Status await(MPI_Request& request, Time deadline, const std::string& doing) {
  Duration pause = 20us;
  while (true) {
    int done = 0;
    const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return failure(code, doing, -1, ErrorCode::initialization);
    if (done != 0) return {};
    if (Clock::now() >= deadline) {
      return Status(ErrorCode::initialization,
                    str(doing, ": not all ranks of MPI_COMM_WORLD came in time"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, 1ms);
  }
}

Expected<Communicator> Communicator::duplicate_world(Time deadline, const std::string& purpose) {
  const std::string doing = str("duplicating MPI_COMM_WORLD for the ", purpose);
  const WorldReturnsErrors guard;
  // MPI writes the handle once all ranks have arrived, perhaps after this rank gave up.
  auto handle = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Comm_idup(MPI_COMM_WORLD, handle.get(), &request);
  if (code != MPI_SUCCESS) return failure(code, doing, -1, ErrorCode::initialization);
  if (Status status = await(request, deadline, doing); !status.ok()) {
    static_cast<void>(handle.release());
    return status;
  }
  return Communicator(*handle);
}

Communicator::Communicator(MPI_Comm handle) : handle_(handle) {
  MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(handle_, &rank_);
  MPI_Comm_size(handle_, &size_);
}

Communicator::~Communicator() {
  if (handle_ != MPI_COMM_NULL && !is_finalized()) MPI_Comm_free(&handle_);
}

}  // namespace rueda::mpi
