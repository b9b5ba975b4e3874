// What this build supports on GPUs.
#pragma once

#include <string>

#include "core/options.h"

namespace rueda {

struct GpuSupport {
  bool built = false;   // collectives accept GPU tensors
  std::string kernels;  // compiler and targets of the kernels; empty if none
  std::string nccl;     // version of the NCCL found; empty if none
};
// Loads NCCL.
[[nodiscard]] GpuSupport gpu_support(const Options& options);

}  // namespace rueda
