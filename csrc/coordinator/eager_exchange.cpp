#include "coordinator/eager_exchange.h"

#include <algorithm>

namespace rueda {

namespace {

// Distance between the keys of this host's data and those of results.
constexpr std::uint64_t keys_here = std::uint64_t{1} << 20;

std::vector<int> ranks_of(const HostMembers& members) {
  return members ? members.ranks : std::vector<int>{0};
}

}  // namespace

EagerExchange::EagerExchange(const HostParts& parts, std::uint64_t key, int slots)
    : here_(parts.own.memory, ranks_of(parts.own), parts.rank,
            {.key = key, .slots = slots, .capacity = capacity}) {
  if (parts.leaders.size() == 1) return;
  result_.emplace(parts.own.memory, ranks_of(parts.own), parts.rank,
                  EagerBuffers::Settings{.key = key + keys_here,
                                         .slots = slots,
                                         .capacity = capacity,
                                         .writers = EagerBuffers::Writers::first});
}

void EagerExchange::reserve(int slot, std::size_t bytes) {
  here_.reserve(slot, bytes);
  if (result_) result_->reserve(slot, bytes);
}

void EagerExchange::hand_out(int slot, std::uint64_t round, const std::vector<std::byte>& result) {
  if (result.empty()) return result_->withdraw(slot, round);
  std::copy(result.begin(), result.end(),
            result_->offer(slot, round, result.size(), result.size()));
}

}  // namespace rueda
