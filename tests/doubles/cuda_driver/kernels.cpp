#include "kernels.h"

#include <array>

#include "cuda/kernels/all.cu"

namespace rueda::test {

namespace {

template <class Parameter>
Parameter parameter_of(void (*kernel)(Parameter));

// Every thread of every block, one after the other. The parameter is the kernel's own; what is
// called is what the kernel calls, since passing the parameter by value each time would take most
// of the time.
template <class Parameter, auto body>
void run_grid(const void* parameter, std::uint32_t blocks, std::uint32_t threads) {
  const auto& batch = *static_cast<const Parameter*>(parameter);
  cuda::blockDim.x = threads;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    cuda::blockIdx.x = block;
    for (std::uint32_t thread = 0; thread < threads; ++thread) {
      cuda::threadIdx.x = thread;
      body(batch);
    }
  }
}

template <auto kernel, auto body>
constexpr Kernel entry(std::string_view name) {
  using Parameter = decltype(parameter_of(kernel));
  return {name, sizeof(Parameter), run_grid<Parameter, body>};
}

constexpr auto copy = [](const auto& batch) { cuda::copy_tile(batch); };

constexpr std::array kernels{
    entry<rueda_copy_small, copy>("rueda_copy_small"),
    entry<rueda_copy_large, copy>("rueda_copy_large"),
};

}  // namespace

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace rueda::test
