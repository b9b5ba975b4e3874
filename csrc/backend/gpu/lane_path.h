// The path that a lane's tensors take, through NCCL or through host memory, as its ranks have
// agreed.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "backend/gpu/gpu_peer_info.h"

namespace rueda {

class LanePath {
 public:
  // False until the ranks have exchanged what each of them has.
  [[nodiscard]] bool is_chosen() const { return choice_.has_value(); }
  // Logs the path if it is not what users expect. `rank`: this rank within the lane.
  void choose(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank);

  // --- After choose()
  [[nodiscard]] GpuPath chosen() const { return choice_->path; }
  [[nodiscard]] const std::string& why_not_nccl() const { return choice_->why_not_nccl; }
  [[nodiscard]] bool all_have_kernels() const { return all_have_kernels_; }
  // Warns, once per lane and on its first rank, that an operation is staged through host memory
  // although NCCL is available.
  void warn_of_staging(int rank);

 private:
  std::optional<PathChoice> choice_;
  bool all_have_kernels_ = false;
  bool has_warned_ = false;
};

}  // namespace rueda
