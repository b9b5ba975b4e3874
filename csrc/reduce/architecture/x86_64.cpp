#include <cpuid.h>

#include <array>

#include "reduce/instruction_set.h"

namespace rueda {

#if !defined(RUEDA_BASELINE_ONLY)
namespace {

bool has_float16_conversion() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// __builtin_cpu_supports() also checks that the operating system saves the registers.
std::size_t count_supported() {
  if (!__builtin_cpu_supports("avx2") || !has_float16_conversion()) return 1;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? 3 : 2;
}

}  // namespace

std::span<const KernelTable* const> supported_kernels() {
  static constexpr std::array all{&baseline::kernels, &avx2::kernels, &avx512::kernels};
  static const std::size_t count = count_supported();
  return std::span(all).first(count);
}
#else
std::span<const KernelTable* const> supported_kernels() {
  static constexpr std::array only{&baseline::kernels};
  return only;
}
#endif

}  // namespace rueda
