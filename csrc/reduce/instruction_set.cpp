#include "reduce/instruction_set.h"

#include <cstdlib>

#include "core/log.h"

namespace rueda {

namespace {

const KernelTable& choose() {
  const char* wanted = std::getenv("RUEDA_INSTRUCTION_SET");
  const auto supported = supported_kernels();
  const KernelTable& chosen = choose_kernels(supported, wanted == nullptr ? "" : wanted);
  if (wanted != nullptr && *wanted != '\0' && std::string_view(wanted) != chosen.name) {
    log(LogLevel::warning, "RUEDA_INSTRUCTION_SET='", wanted, "' is not supported here: using ",
        chosen.name);
  }
  return chosen;
}

}  // namespace

const KernelTable& choose_kernels(std::span<const KernelTable* const> supported,
                                  std::string_view wanted) {
  for (const KernelTable* kernels : supported) {
    if (wanted == kernels->name) return *kernels;
  }
  return *supported.back();
}

const KernelTable& chosen_kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace rueda
