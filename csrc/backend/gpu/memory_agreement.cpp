#include "backend/gpu/memory_agreement.h"

#include "backend/gpu/gpu_peer_info.h"
#include "core/strings.h"

namespace rueda {

std::unique_ptr<Operation> MemoryAgreement::ask(const Lane& lane, Backend& host,
                                                const Status& own) {
  write_text(card_, own.ok() ? std::string() : own.to_string());
  cards_.assign(static_cast<std::size_t>(lane.size()), Card{});
  const std::vector<std::int64_t> lengths(cards_.size(), sizeof(Card));
  return host.allgather(lane, reinterpret_cast<const std::byte*>(card_.data()),
                        reinterpret_cast<std::byte*>(cards_.data()), lengths);
}

Status MemoryAgreement::verdict(const Lane& lane) const {
  for (std::size_t i = 0; i < cards_.size(); ++i) {
    if (cards_[i].front() == '\0') continue;
    const int rank = lane.world_rank(static_cast<int>(i));
    return {ErrorCode::unsupported,
            str("rank ", rank, " has no memory of its GPU left for it: ", cards_[i].data(),
                ". Let its allocator keep less, or reduce fewer or smaller tensors at once "
                "(RUEDA_FUSION_THRESHOLD)"),
            rank};
  }
  return {};
}

}  // namespace rueda
