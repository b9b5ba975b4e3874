// Which of the compiled kernels this CPU runs.
#pragma once

#include <span>
#include <string_view>

#include "reduce/kernels/kernel_table.h"

namespace rueda {

// Those that the CPU and the operating system support, simplest first. At least one.
[[nodiscard]] std::span<const KernelTable* const> supported_kernels();

// The one of `supported` that is named `wanted`; the last of them where none is.
[[nodiscard]] const KernelTable& choose_kernels(std::span<const KernelTable* const> supported,
                                                std::string_view wanted);

// Those that are used: chosen once, by the CPU and RUEDA_INSTRUCTION_SET.
[[nodiscard]] const KernelTable& chosen_kernels();

}  // namespace rueda
