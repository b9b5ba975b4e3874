// Collectives on memory of GPUs, by an MPI that takes its addresses.
#include <dlfcn.h>
#include <mpi.h>

#include <chrono>
#include <climits>
#include <optional>

#include "core/strings.h"
#include "mpi/error.h"
#include "mpi/transport.h"

namespace rueda::mpi {

namespace {

constexpr auto doing = "reducing memory of GPUs over MPI";

// MPI does not say which process was lost. The control lane does, and aborts this.
constexpr auto patience = std::chrono::seconds(1);

std::optional<MPI_Datatype> type_of(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return MPI_FLOAT;
    case DataType::float64: return MPI_DOUBLE;
    case DataType::int8: return MPI_INT8_T;
    case DataType::int16: return MPI_INT16_T;
    case DataType::int32: return MPI_INT32_T;
    case DataType::int64: return MPI_INT64_T;
    case DataType::uint8: return MPI_UINT8_T;
    case DataType::uint16: return MPI_UINT16_T;
    case DataType::uint32: return MPI_UINT32_T;
    case DataType::uint64: return MPI_UINT64_T;
    default: return std::nullopt;
  }
}

std::optional<MPI_Op> operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return MPI_SUM;
    case ReduceOp::product: return MPI_PROD;
    case ReduceOp::min: return MPI_MIN;
    case ReduceOp::max: return MPI_MAX;
    default: return std::nullopt;
  }
}

// Not part of MPI itself: what Open MPI and MPICH have, looked for in the library that is loaded.
template <class Function>
Function* found_in_mpi(const char* name) {
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &library) == 0) return nullptr;
  void* handle = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* found = dlsym(handle, name);
  dlclose(handle);
  return reinterpret_cast<Function*>(found);
}

// Nothing where MPI cannot be asked.
std::optional<bool> says_that_it_takes_cuda() {
  if (auto* query = found_in_mpi<int()>("MPIX_Query_cuda_support")) return query() != 0;
  if (auto* query = found_in_mpi<int(int, int*)>("MPIX_GPU_query_support")) {
    constexpr int cuda = 0;
    int answer = 0;
    return query(cuda, &answer) == MPI_SUCCESS && answer != 0;
  }
  return std::nullopt;
}

}  // namespace

Status MpiTransport::takes_gpu_memory(bool is_certain) const {
  if (is_certain) return {};
  const auto answer = says_that_it_takes_cuda();
  if (answer && *answer) return {};
  return {ErrorCode::unsupported,
          str(answer ? "this MPI says that it takes no memory of GPUs"
                     : "this MPI does not tell whether it takes memory of GPUs",
              ": use one that was built with CUDA (`ompi_info --parsable --all | grep "
              "mpi_built_with_cuda_support:value`), or set RUEDA_MPI_GPU_MEMORY=on where it does")};
}

Ticket MpiTransport::allreduce(std::byte* data, std::int64_t count, DataType dtype, ReduceOp op,
                               std::shared_ptr<const void> owner) {
  auto ticket = std::make_shared<Transfer>();
  const auto refuse = [&](Status status) {
    ticket->status = std::move(status);
    ticket->done = true;
    return ticket;
  };
  if (!aborted_.ok()) return refuse(aborted_);
  if (is_finalized()) return refuse({ErrorCode::transport, str(doing, ": MPI was finalised")});
  const auto type = type_of(dtype);
  const auto operation = operation_of(op);
  if (!type || !operation || count > INT_MAX) {
    return refuse({ErrorCode::internal,
                   str(doing, ": ", name_of(op), " of ", count, " elements of ", name_of(dtype))});
  }
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), *type, *operation,
                                  communicator_.get(), &request);
  if (code != MPI_SUCCESS) {
    clean_ = false;
    return refuse(failure(code, doing));
  }
  collectives_.push_back({request, ticket, std::move(owner)});
  return ticket;
}

bool MpiTransport::collect_collectives() {
  return std::erase_if(collectives_, [this](Collective& each) { return collect(each); }) > 0;
}

bool MpiTransport::collect(Collective& collective) {
  if (collective.failure.ok()) {
    int done = 0;
    const int code = MPI_Test(&collective.request, &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && done == 0) return false;
    if (code != MPI_SUCCESS) {
      clean_ = false;
      collective.failure = failure(code, doing);
      collective.failed_at = Clock::now();
    }
  }
  const bool may_be_told_more = collective.failure.code() == ErrorCode::peer_lost &&
                                Clock::now() - collective.failed_at < patience;
  if (may_be_told_more) return false;
  collective.ticket->status = collective.failure;
  collective.ticket->done = true;
  return true;
}

// MPI cannot be stopped, and may write to that memory for as long as the process lives.
void MpiTransport::give_up_collectives(const Status& reason) {
  for (Collective& collective : collectives_) {
    collective.ticket->status = reason;
    collective.ticket->done = true;
    static_cast<void>(new std::shared_ptr<const void>(std::move(collective.owner)));
  }
  collectives_.clear();
}

}  // namespace rueda::mpi
