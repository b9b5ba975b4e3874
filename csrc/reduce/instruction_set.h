// Which of the compiled kernels this CPU uses.
#pragma once

#include <span>
#include <string_view>

#include "reduce/kernels/kernel_table.h"

namespace rueda {

// The kernels that the CPU and the operating system support, simplest first. At least one.
[[nodiscard]] std::span<const KernelTable* const> supported_kernels();

// The one of `supported` that is named `wanted`; the last of them if none is.
[[nodiscard]] const KernelTable& choose_kernels(std::span<const KernelTable* const> supported,
                                                std::string_view wanted);

// The kernels in use: chosen once, by the CPU and RUEDA_INSTRUCTION_SET.
[[nodiscard]] const KernelTable& chosen_kernels();

}  // namespace rueda
