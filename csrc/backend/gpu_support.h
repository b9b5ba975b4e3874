// What this build can do with GPUs.
#pragma once

#include <string>

#include "core/options.h"

namespace rueda {

struct GpuSupport {
  bool built = false;   // tensors of GPUs are served
  std::string kernels;  // what the kernels were compiled by and for; empty without them
  std::string nccl;     // version of the NCCL that is found; empty without
};
// Loads NCCL.
[[nodiscard]] GpuSupport gpu_support(const Options& options);

}  // namespace rueda
