#include "backend/gpu/memory_agreement.h"

#include <utility>

#include "backend/gpu/gpu_peer_info.h"
#include "core/strings.h"

namespace rueda {

void MemoryAgreement::begin(const Status& own) {
  step_ = Step::ask;
  own_ = own.ok() ? 0 : 1;
  any_ = own_;
  write_text(problem_, own.ok() ? std::string() : own.to_string());
}

std::unique_ptr<Operation> MemoryAgreement::next(const Lane& lane, Backend& host) {
  const auto ranks = static_cast<std::size_t>(lane.size());
  if (step_ == Step::ask) {
    step_ = Step::tell;
    if (ranks > 1) {
      return host.allreduce(
          lane, {.dtype = DataType::int64, .op = ReduceOp::max, .contributors = lane.size()},
          {{reinterpret_cast<const std::byte*>(&own_), reinterpret_cast<std::byte*>(&any_), 1}});
    }
  }
  if (std::exchange(step_, Step::none) == Step::none || any_ == 0) return nullptr;
  problems_.assign(ranks, problem_);
  if (ranks == 1) return nullptr;
  const std::vector<std::int64_t> lengths(ranks, sizeof(Problem));
  return host.allgather(lane, reinterpret_cast<const std::byte*>(problem_.data()),
                        reinterpret_cast<std::byte*>(problems_.data()), lengths);
}

Status MemoryAgreement::verdict(const Lane& lane) const {
  for (std::size_t i = 0; i < problems_.size(); ++i) {
    if (problems_[i].front() == '\0') continue;
    const int rank = lane.world_rank(static_cast<int>(i));
    return {ErrorCode::unsupported,
            str("rank ", rank, " has no memory left for it: ", problems_[i].data(),
                ". Let its allocator cache less, or reduce and gather less at once "
                "(RUEDA_FUSION_THRESHOLD)"),
            rank};
  }
  return {};
}

}  // namespace rueda
