// Whether this MPI takes memory of GPUs.
#include <dlfcn.h>
#include <mpi.h>

#include <optional>

#include "core/strings.h"
#include "mpi/gpu_reductions.h"

namespace rueda::mpi {

namespace {

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

Status takes_cuda_memory() {
  const auto answer = says_that_it_takes_cuda();
  if (answer && *answer) return {};
  return {ErrorCode::unsupported,
          str(answer ? "this MPI says that it takes no memory of GPUs"
                     : "this MPI does not tell whether it takes memory of GPUs",
              ": use one that was built with CUDA (`ompi_info --parsable --all | grep "
              "mpi_built_with_cuda_support:value`), or set RUEDA_MPI_GPU_MEMORY=on where it does")};
}

}  // namespace rueda::mpi
