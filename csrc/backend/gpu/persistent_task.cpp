#include "backend/gpu/persistent_task.h"

#include <utility>

#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/persistent_reduction.h"
#include "core/strings.h"

namespace rueda {

PersistentTask::PersistentTask(const Reduction& reduction, Piece piece, const Lane& lane,
                               Duration timeout, TakeReduction take)
    : reduction_(reduction),
      piece_(piece),
      timeout_(timeout),
      take_(std::move(take)),
      contributions_(static_cast<std::size_t>(lane.size())) {}

bool PersistentTask::suits_nccl(const GpuLane& gpu) const {
  return nccl_can_take_part(reduction_, static_cast<int>(contributions_.size()),
                            gpu.path().all_have_kernels());
}

Status PersistentTask::fill_contribution(GpuLane& gpu, bool makes_id) {
  if (reduction_.wire) {
    const std::size_t bytes = static_cast<std::size_t>(piece_.count) * size_of(*reduction_.wire);
    if (gpu.callers()) buffer_ = gpu.callers()->kept(bytes);
    if (buffer_.size() < bytes) {
      auto buffer = DeviceMemory::allocate(gpu.gpu().device, bytes);
      if (!buffer) return buffer.status();
      buffer_ = std::move(buffer).value();
    }
  }
  if (!makes_id) return {};
  const CurrentDevice current(*gpu.gpu().device);
  if (!current.status().ok()) return current.status();
  auto id = gpu.gpu().nccl->unique_id();
  if (!id) return id.status();
  contribution_.id = *id;
  return {};
}

std::unique_ptr<Operation> PersistentTask::prepare(GpuLane& gpu, const Lane& lane, Backend& host,
                                                   Way way) {
  if (way == Way::staged) return nullptr;
  if (Status status = fill_contribution(gpu, lane.rank == 0 && !gpu.callers()); !status.ok()) {
    write_text(contribution_.problem, status.to_string());
  }
  const std::vector<std::int64_t> lengths(contributions_.size(), sizeof(Contribution));
  return host.allgather(lane, reinterpret_cast<const std::byte*>(&contribution_),
                        reinterpret_cast<std::byte*>(contributions_.data()), lengths);
}

Status PersistentTask::enqueue(GpuLane& gpu, const Lane& lane) {
  for (int rank = 0; rank < lane.size(); ++rank) {
    const Contribution& contribution = contributions_[static_cast<std::size_t>(rank)];
    if (contribution.problem.front() == '\0') continue;
    failed_everywhere_ = true;
    if (gpu.callers()) gpu.callers()->keep(std::move(buffer_));
    return {ErrorCode::internal,
            str("rank ", lane.world_rank(rank),
                " cannot prepare a persistent allreduce: ", contribution.problem.data()),
            lane.world_rank(rank)};
  }
  if (gpu.callers()) return {};
  return gpu.connect_callers(contributions_.front().id, lane.rank, lane.size(), timeout_);
}

Expected<bool> PersistentTask::is_launched(const GpuLane& gpu) const {
  return gpu.callers()->poll();
}

Status PersistentTask::conclude(GpuLane& gpu, const Lane& lane) {
  take_(std::make_shared<PersistentReduction>(gpu.gpu(), gpu.callers(), reduction_, piece_,
                                              std::move(buffer_), *lane.counters));
  return {};
}

Expected<bool> PersistentTask::advance_staged(GpuLane& gpu, const Lane&, Backend&) {
  std::string why = gpu.path().why_not_nccl();
  if (why.empty() && nccl_plan(reduction_) && !gpu.path().all_have_kernels()) {
    why = "a rank's build lacks the CUDA kernels that convert and scale elements";
  } else if (why.empty()) {
    why = str("NCCL cannot do this ", name_of(reduction_.op), " of ", name_of(reduction_.dtype),
              " with the same results");
  }
  take_(std::make_shared<StagedReduction>(
      gpu.gpu(), Status(ErrorCode::unsupported, str("it goes through host memory (", why, ")"))));
  is_staged_ = true;
  return true;
}

}  // namespace rueda
