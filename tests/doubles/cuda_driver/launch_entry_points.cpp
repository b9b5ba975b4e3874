// Modules and launches, under the names by which they are looked up.
#include <stdexcept>
#include <vector>

#include "entry.h"
#include "kernels.h"

using rueda::test::Kernel;
using rueda::test::refuse;

namespace rueda::test {

std::byte* memory_of_kernel(std::uint64_t address) {
  if (!DriverState::instance().memory().is_there(address, 1))
    throw std::runtime_error(
        "a kernel reached for memory that is not a device's (any more), nor pinned");
  return Memory::host_address(address);
}

}  // namespace rueda::test

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  BEGIN();
  if (!state.settings().loads_modules) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *module = static_cast<CUmodule>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) {
  BEGIN();
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  BEGIN();
  const Kernel* kernel = rueda::test::find_kernel(name);
  *function = reinterpret_cast<CUfunction>(const_cast<Kernel*>(kernel));
  return kernel == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                        unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                        CUstream stream, void** parameters, void** extra) {
  BEGIN();
  if (blocks == 0 || blocks_y * blocks_z * threads_y * threads_z != 1 || shared != 0 ||
      extra != nullptr) {
    return refuse(state, "a launch with a grid that these kernels do not have");
  }
  if (state.device_of_stream(stream) != state.current_device()) {
    state.misused("a kernel was launched into a stream of another device");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto* kernel = reinterpret_cast<const Kernel*>(function);
  const auto* first = static_cast<const std::byte*>(parameters[0]);
  return state.push(stream,
                    [kernel, blocks, threads,
                     copied = std::vector<std::byte>(first, first + kernel->parameter_bytes)] {
                      kernel->run(copied.data(), blocks, threads);
                    });
}

}  // extern "C"
