#include "plan/set_hosts.h"

#include <algorithm>
#include <utility>

namespace rueda {

SetHosts::SetHosts(std::vector<std::vector<int>> members, int host, int rank,
                   const std::vector<int>& ranks, AlgorithmTable algorithms,
                   AlgorithmTable alltoall, const LinkCosts& costs)
    : parts_(std::move(members)),
      host_(host),
      rank_(rank),
      algorithms_(std::move(algorithms)),
      alltoall_(std::move(alltoall)),
      costs_(costs),
      places_(ranks.size()) {
  const auto world_rank = [&](int member) { return ranks[static_cast<std::size_t>(member)]; };
  min_size_ = max_size_ = size(0);
  for (int each = 0; each < hosts(); ++each) {
    min_size_ = std::min(min_size_, size(each));
    max_size_ = std::max(max_size_, size(each));
    for (int index = 0; index < size(each); ++index) {
      places_[static_cast<std::size_t>(member(each, index))] = {each, index};
    }
  }
  for (const int member : part(host_)) here_.push_back(world_rank(member));
  across_.resize(static_cast<std::size_t>(max_size_));
  for (int ring = 0; ring < max_size_; ++ring) {
    for (int each = 0; each < hosts(); ++each) {
      const int index = member_of_ring(each, ring);
      across_[static_cast<std::size_t>(ring)].push_back(world_rank(member(each, index)));
    }
  }
}

int SetHosts::host_of(int member) const {
  return places_[static_cast<std::size_t>(member)].host;
}

int SetHosts::index_of(int member) const {
  return places_[static_cast<std::size_t>(member)].index;
}

}  // namespace rueda
