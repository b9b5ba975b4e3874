#include "backend/gpu/gpu_peer_info.h"

#include "backend/nccl/library.h"
#include "core/strings.h"

namespace rueda {

namespace {

// What prevents a communicator; empty if nothing does.
std::string obstacle(std::span<const GpuPeerInfo> infos, const std::vector<int>& members) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (!infos[i].has_nccl) {
      return str("rank ", members[i], " has no NCCL: ", infos[i].problem.data());
    }
  }
  for (std::size_t i = 0; i < infos.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (infos[i].nccl_version != infos[j].nccl_version) {
        return str("rank ", members[j], " has NCCL ", nccl_version_text(infos[j].nccl_version),
                   ", rank ", members[i], " has NCCL ", nccl_version_text(infos[i].nccl_version),
                   ": install the same version on all ranks");
      }
      if (infos[i].host == infos[j].host && infos[i].gpu == infos[j].gpu) {
        if (infos[i].may_share && infos[j].may_share) continue;
        return str("ranks ", members[j], " and ", members[i], " share the GPU ",
                   infos[i].gpu.data(), ", which NCCL ", nccl_version_text(infos[i].nccl_version),
                   " does not allow: give each rank its own (torch.cuda.set_device(local_rank)), "
                   "or for a test use NCCL 2.30 or newer with RUEDA_GPU_SHARING=on and "
                   "NCCL_MULTI_RANK_GPU_ENABLE=1");
      }
    }
  }
  return {};
}

}  // namespace

std::string_view name_of(GpuPath path) {
  switch (path) {
    case GpuPath::nccl: return "nccl";
    case GpuPath::staged: return "staged";
  }
  return "";
}

Expected<PathChoice> choose_path(std::span<const GpuPeerInfo> infos,
                                 const std::vector<int>& members, const std::string& wanted) {
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].has_gpu) continue;
    return Status(ErrorCode::invalid_argument,
                  str("rank ", members[i], " takes part without a GPU: ", infos[i].problem.data()),
                  members[i]);
  }
  const std::string asked = str("RUEDA_GPU_BACKEND=", wanted);
  if (wanted == "staged") return PathChoice{GpuPath::staged, asked, false};
  const std::string why_not = obstacle(infos, members);
  if (why_not.empty()) return PathChoice{GpuPath::nccl, {}, false};
  if (wanted == "auto") return PathChoice{GpuPath::staged, why_not, true};
  return Status(
      ErrorCode::unsupported,
      str(asked, ", but ", why_not, ". RUEDA_GPU_BACKEND=staged or auto uses host memory instead"));
}

}  // namespace rueda
