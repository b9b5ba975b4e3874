#include "backend/gpu/lane_path.h"

#include <algorithm>
#include <utility>

#include "core/log.h"

namespace rueda {

void LanePath::choose(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank) {
  all_have_kernels_ = std::all_of(infos.begin(), infos.end(),
                                  [](const GpuPeerInfo& info) { return info.has_kernels; });
  if (choice.is_fallback && rank == 0) {
    log(LogLevel::warning, "GPU tensors go through host memory, not NCCL: ", choice.why_not_nccl);
  }
  choice_ = std::move(choice);
}

void LanePath::warn_of_staging(int rank) {
  if (chosen() != GpuPath::nccl || rank != 0 || std::exchange(has_warned_, true)) return;
  log(LogLevel::warning,
      "a GPU operation goes through host memory because NCCL cannot do it with the same results: "
      "averages and scaled sums of integers, 16-bit integers, bitwise operations, and minimums, "
      "maximums and products with factors or after ranks have joined",
      all_have_kernels_ ? ""
                        : ", and all factors and conversions, as a rank has no CUDA kernels (build "
                          "Rueda with nvcc 12.8 or newer)",
      ". Reduce floating-point tensors, or set RUEDA_LOG_LEVEL=error");
}

}  // namespace rueda
