// The path that tensors of a lane take, by NCCL or through the host's memory: what its ranks have
// agreed on.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "backend/gpu/gpu_peer_info.h"

namespace rueda {

class LanePath {
 public:
  // Not before the ranks have told each other what each has.
  [[nodiscard]] bool is_chosen() const { return choice_.has_value(); }
  // Says in the log where it is not what users expect. `rank`: of this one, within the lane.
  void choose(PathChoice choice, std::span<const GpuPeerInfo> infos, int rank);

  // --- Once it is chosen
  [[nodiscard]] GpuPath chosen() const { return choice_->path; }
  [[nodiscard]] const std::string& why_not_nccl() const { return choice_->why_not_nccl; }
  [[nodiscard]] bool all_have_kernels() const { return all_have_kernels_; }
  // Once per lane, by its first rank: that an operation goes through the host's memory though NCCL
  // is there.
  void warn_of_staging(int rank);

 private:
  std::optional<PathChoice> choice_;
  bool all_have_kernels_ = false;
  bool has_warned_ = false;
};

}  // namespace rueda
