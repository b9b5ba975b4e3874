// The kernels by name, as calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rueda::test {

struct Kernel {
  std::string_view name;
  std::size_t parameter_bytes;
  void (*run)(const void* parameter, std::uint32_t blocks, std::uint32_t threads);
};

// Null where there is none of this name.
[[nodiscard]] const Kernel* find_kernel(std::string_view name);

}  // namespace rueda::test
