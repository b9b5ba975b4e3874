#include "backend/gpu/gpu_card.h"

#include <algorithm>

#include "core/strings.h"

namespace rueda {

namespace {

// What is in the way of one communicator for those ranks that `meet` tells to be in the same one;
// empty where nothing is.
template <class Meet>
std::string obstacle(std::span<const GpuCard> cards, const std::vector<int>& members,
                     const Meet& meet) {
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (!cards[i].has_nccl) {
      return str("rank ", members[i], " has no NCCL: ", cards[i].problem.data());
    }
  }
  for (std::size_t i = 0; i < cards.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!meet(members[j], members[i])) continue;
      if (cards[i].host == cards[j].host && cards[i].gpu == cards[j].gpu) {
        return str("ranks ", members[j], " and ", members[i], " share the GPU ",
                   cards[i].gpu.data(), ", which NCCL does not allow");
      }
      if (cards[i].nccl_version != cards[j].nccl_version) {
        return str("rank ", members[j], " has NCCL ", cards[j].nccl_version, ", rank ", members[i],
                   " has NCCL ", cards[i].nccl_version);
      }
    }
  }
  return {};
}

}  // namespace

std::string_view name_of(GpuRoad road) {
  switch (road) {
    case GpuRoad::nccl: return "nccl";
    case GpuRoad::staged: return "staged";
    case GpuRoad::hierarchical: return "hierarchical";
    case GpuRoad::mpi: return "mpi";
  }
  return "";
}

Expected<RoadChoice> choose_road(std::span<const GpuCard> cards, const std::vector<int>& members,
                                 const std::vector<int>& host_of, const std::string& wanted,
                                 bool is_world) {
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].has_gpu) continue;
    return Status(ErrorCode::invalid_argument,
                  str("rank ", members[i], " takes part with no GPU: ", cards[i].problem.data()),
                  members[i]);
  }
  const std::string asked = str("RUEDA_GPU_BACKEND=", wanted);
  if (wanted == "staged") return RoadChoice{GpuRoad::staged, asked};
  if (wanted == "mpi") {
    if (!is_world || members.size() == 1) return RoadChoice{GpuRoad::staged, asked};
    for (std::size_t i = 0; i < cards.size(); ++i) {
      if (cards[i].has_mpi) continue;
      return Status(ErrorCode::unsupported,
                    str(asked, ", but on rank ", members[i], " ", cards[i].no_mpi.data()),
                    members[i]);
    }
    return RoadChoice{GpuRoad::mpi, asked};
  }

  const auto on_one_host = [&](int a, int b) {
    return host_of[static_cast<std::size_t>(a)] == host_of[static_cast<std::size_t>(b)];
  };
  const bool is_one_host = std::all_of(members.begin(), members.end(), [&](int member) {
    return on_one_host(member, members.front());
  });
  const bool is_hierarchical = wanted == "hierarchical" && !is_one_host;
  const std::string why_not = is_hierarchical
                                  ? obstacle(cards, members, on_one_host)
                                  : obstacle(cards, members, [](int, int) { return true; });
  if (why_not.empty()) {
    return is_hierarchical ? RoadChoice{GpuRoad::hierarchical, asked}
                           : RoadChoice{GpuRoad::nccl, {}};
  }
  if (wanted == "auto") return RoadChoice{GpuRoad::staged, why_not};
  return Status(ErrorCode::unsupported,
                str(asked, ", but ", why_not,
                    ". RUEDA_GPU_BACKEND=staged, or auto, goes through the host's memory instead"));
}

}  // namespace rueda
